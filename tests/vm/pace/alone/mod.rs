mod speeds;
