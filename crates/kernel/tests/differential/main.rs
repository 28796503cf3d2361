//! The arithmetic of the kernel side gives the results of the references in `crates/`, on invented
//! inputs. As root:
//!
//!     cargo test --release -p kernel --test differential

mod guard;
mod guard_steps;
mod pace;
mod pace_moments;
