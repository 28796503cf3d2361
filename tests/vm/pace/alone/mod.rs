mod counted;
mod input;
mod speeds;
