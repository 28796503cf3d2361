mod counted;
mod speeds;
