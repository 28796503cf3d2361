//! The interface to the machine.

/// Looks up names of a rule file on the machine.
pub trait Host {
    /// The number of the user with this name.
    fn user(&self, name: &str) -> Option<u32>;
    /// The path with its symbolic links resolved, as far as it exists. A trailing '/' is ignored.
    fn real_path(&self, path: &str) -> String;
}
