//! The folder of stored samples: for each type of tasks, the work of its latest tasks. Only the
//! process that sets speeds writes to it.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{self, Path, PathBuf};

use ::pace::MAX_SAMPLES;
use anyhow::{Context as _, Result, anyhow, bail};
use control::fnv_1a;
use serde::{Deserialize, Serialize};

use super::json_error;
use super::json_object::{FromObject, JsonObject};
use crate::durable_file;
use crate::format::shown_path;
use crate::output::log_message;

const SCHEMA: &str = "tollgate.pace.type/1";
const SUFFIX: &str = "json";
/// The maximum number of types that are kept: some 120 MB with 1,000 samples of ten digits each,
/// and more types than a session has.
const MAX_STORED: usize = 10_000;

/// A folder of samples.
#[derive(Clone)]
pub struct SampleStore {
    folder: PathBuf,
}

/// The samples of a type.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredType {
    schema: String,
    pub name: String,
    /// The work of its tasks in cycles, that of the latest one last.
    pub cycles: Vec<u64>,
}

impl JsonObject for StoredType {
    const EXPECTED: &str = "an object with schema, name and cycles";
}

impl SampleStore {
    /// The store in a folder that need not exist yet.
    pub fn new(folder: &Path) -> Self {
        Self { folder: folder.to_owned() }
    }

    /// The absolute path of the folder, without symbolic links if it exists.
    pub fn path_of_folder(&self) -> PathBuf {
        let folder = &self.folder;
        fs::canonicalize(folder).or_else(|_| path::absolute(folder)).unwrap_or(folder.clone())
    }

    /// The samples of a type. A file that is not valid causes a warning, and is replaced later.
    pub fn load(&self, name: &str) -> Vec<f64> {
        let path = self.path(name);
        match read(&path) {
            Ok(Some(stored)) if stored.name == name => {
                stored.cycles.iter().map(|cycles| *cycles as f64).collect()
            }
            Ok(_) => Vec::new(),
            Err(error) => {
                log_message(&format!("{error:#}"));
                Vec::new()
            }
        }
    }

    /// Stores the latest samples of a type.
    pub fn save(&self, name: &str, samples: &[f64]) -> Result<()> {
        let latest = &samples[samples.len().saturating_sub(MAX_SAMPLES)..];
        let cycles = latest.iter().map(|cycles| *cycles as u64).collect();
        let stored = StoredType { schema: SCHEMA.into(), name: name.into(), cycles };
        let path = self.path(name);
        let write = || -> io::Result<()> {
            DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)?;
            durable_file::replace(&path, &serde_json::to_vec(&stored)?)
        };
        write().with_context(|| format!("cannot store samples in {}", shown_path(&path)))
    }

    /// All types, by their names.
    pub fn all(&self) -> Result<Vec<StoredType>> {
        let mut all = Vec::new();
        for path in self.files()? {
            match read(&path) {
                // `load` and `remove_all` would not find it.
                Ok(Some(stored)) if self.path(&stored.name) != path => log_message(&format!(
                    "{} is not used: the samples of {:?} belong in a file of another name",
                    shown_path(&path),
                    stored.name
                )),
                Ok(stored) => all.extend(stored),
                Err(error) => log_message(&format!("{error:#}")),
            }
        }
        all.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(all)
    }

    /// The files of samples.
    fn files(&self) -> Result<Vec<PathBuf>> {
        let list = || -> io::Result<Vec<PathBuf>> {
            let entries = match fs::read_dir(&self.folder) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
                entries => entries?,
            };
            let paths: io::Result<Vec<_>> = entries.map(|entry| Ok(entry?.path())).collect();
            let has_samples = |path: &PathBuf| path.extension().is_some_and(|one| one == SUFFIX);
            Ok(paths?.into_iter().filter(has_samples).collect())
        };
        list().with_context(|| format!("cannot read the store {}", shown_path(&self.folder)))
    }

    /// Deletes the files that were stored first, if there are too many.
    pub fn remove_oldest(&self) -> Result<()> {
        let mut files = self.files()?;
        // Other files in the folder are not those of Tollgate.
        files.retain(|path| path.file_stem().is_some_and(|stem| is_hash(&stem.to_string_lossy())));
        let Some(surplus) = files.len().checked_sub(MAX_STORED).filter(|surplus| *surplus > 0)
        else {
            return Ok(());
        };
        let stored_at = |path: &PathBuf| fs::metadata(path).and_then(|known| known.modified()).ok();
        let mut by_age: Vec<_> = files.iter().map(|path| (stored_at(path), path)).collect();
        by_age.sort();
        by_age.iter().take(surplus).try_for_each(|(_, path)| delete(path).map(drop))
    }

    /// Deletes the samples of types. Returns the names of those that have none.
    pub fn remove_all(&self, names: &[String]) -> Result<Vec<String>> {
        let mut unknown = Vec::new();
        for name in names {
            if !delete(&self.path(name))? {
                unknown.push(name.clone());
            }
        }
        Ok(unknown)
    }

    /// The file of a type. Its name is a hash (FNV-1a) of the type's name, which may have any
    /// characters.
    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{:016x}.{SUFFIX}", fnv_1a(name.as_bytes())))
    }
}

/// Whether this is the name of a file of samples, without the suffix.
fn is_hash(stem: &str) -> bool {
    stem.len() == 16 && stem.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Deletes a file. Returns false if there is none.
fn delete(path: &Path) -> Result<bool> {
    match fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error).with_context(|| format!("cannot delete {}", shown_path(path))),
    }
}

/// The type in a file. `None` if there is no such file.
fn read(path: &Path) -> Result<Option<StoredType>> {
    let text = match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        text => text.with_context(|| format!("cannot read {}", shown_path(path)))?,
    };
    let FromObject::<StoredType>(stored) = serde_json::from_slice(&text).map_err(|error| {
        let (line, column) = (error.line(), json_error::column(&error));
        let message = json_error::message(&error);
        anyhow!("{}:{line}{column}: not the samples of a type: {message}", shown_path(path))
    })?;
    if stored.schema != SCHEMA {
        bail!(
            "{} is not used: it has schema {:?}, but this version reads {SCHEMA:?}",
            shown_path(path),
            stored.schema
        );
    }
    Ok(Some(stored))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::time::{Duration, SystemTime};

    use super::*;

    #[test]
    fn samples_are_stored_by_type() {
        let folder = tempfile::tempdir().unwrap();
        let store = SampleStore::new(&folder.path().join("pace"));
        assert_eq!(store.all().unwrap(), []);
        assert!(store.load("game: frame").is_empty());
        store.save("game: frame", &[1e6, 2e6]).unwrap();
        store.save("a / b", &[3e6]).unwrap();
        assert_eq!(store.load("game: frame"), [1e6, 2e6]);
        let all = store.all().unwrap();
        let names: Vec<_> = all.iter().map(|stored| stored.name.as_str()).collect();
        assert_eq!(names, ["a / b", "game: frame"]);
        let frame = ["game: frame".to_owned()];
        assert!(store.remove_all(&frame).unwrap().is_empty());
        assert_eq!(store.remove_all(&frame).unwrap(), frame);
        assert!(store.load("game: frame").is_empty());
    }

    #[test]
    fn only_the_latest_samples_are_stored() {
        let folder = tempfile::tempdir().unwrap();
        let store = SampleStore::new(folder.path());
        let samples: Vec<_> = (0..MAX_SAMPLES + 5).map(|n| n as f64).collect();
        store.save("t", &samples).unwrap();
        assert_eq!(store.load("t"), samples[5..]);
    }

    #[test]
    fn invalid_file_is_no_sample() {
        let folder = tempfile::tempdir().unwrap();
        let store = SampleStore::new(folder.path());
        fs::write(store.path("t"), "{").unwrap();
        assert!(store.load("t").is_empty());
        let error_of = || format!("{:#}", read(&store.path("t")).unwrap_err());
        let error = error_of();
        let expected = ".json:1:1: not the samples of a type: the text ends too early";
        assert!(error.ends_with(expected), "{error}");
        let stored = r#"{"schema":"tollgate.pace.type/1","name":"t","cycles":["a"]}"#;
        fs::write(store.path("t"), stored).unwrap();
        let error = error_of();
        assert!(error.ends_with("string \"a\", expected a whole number from 0"), "{error}");
        assert!(error.contains(".json:1:57: "), "{error}");
        fs::write(store.path("t"), r#"["tollgate.pace.type/1","t",[1]]"#).unwrap();
        assert!(error_of().ends_with("list, expected an object with schema, name and cycles"));
        // It does not hide the others.
        store.save("u", &[1.0]).unwrap();
        assert_eq!(store.all().unwrap().len(), 1);
        store.save("t", &[1.0]).unwrap();
        assert_eq!(store.load("t"), [1.0]);
    }

    #[test]
    fn misnamed_and_older_files_are_not_listed() {
        let folder = tempfile::tempdir().unwrap();
        let store = SampleStore::new(folder.path());
        store.save("t", &[1.0]).unwrap();
        fs::copy(store.path("t"), folder.path().join("copy.json")).unwrap();
        let older = fs::read_to_string(store.path("t")).unwrap().replace("type/1", "type/0");
        fs::write(store.path("u"), older.replace("\"t\"", "\"u\"")).unwrap();
        assert_eq!(store.all().unwrap().len(), 1);
        assert!(store.load("u").is_empty());
        let error = format!("{:#}", read(&store.path("u")).unwrap_err());
        assert!(error.contains("has schema \"tollgate.pace.type/0\", but"), "{error}");
    }

    #[test]
    fn oldest_files_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let store = SampleStore::new(folder.path());
        store.remove_oldest().unwrap();
        for n in 0..MAX_STORED + 3 {
            let path = folder.path().join(format!("{n:016x}.{SUFFIX}"));
            let file = fs::File::create(path).unwrap();
            // The first three are the latest ones.
            let age = Duration::from_secs(if n < 3 { 0 } else { 100_000 - n as u64 });
            file.set_modified(SystemTime::now() - age).unwrap();
        }
        for other in ["note.txt", "settings.json"] {
            fs::write(folder.path().join(other), "of another program").unwrap();
        }
        store.remove_oldest().unwrap();
        let mut names: Vec<_> = store
            .files()
            .unwrap()
            .iter()
            .map(|path| path.file_stem().unwrap().to_owned())
            .collect();
        names.sort();
        let name = |n| OsString::from(format!("{n:016x}"));
        let own = (0..3).chain(6..MAX_STORED + 3).map(name);
        let kept: Vec<_> = own.chain(["settings".into()]).collect();
        assert!(folder.path().join("note.txt").exists());
        assert_eq!(names, kept);
    }

    #[test]
    fn full_store_is_an_error() {
        let store = SampleStore::new(Path::new("/dev/full"));
        let error = format!("{:#}", store.save("t", &[1.0]).unwrap_err());
        assert!(error.contains("cannot store samples in /dev/full/"), "{error}");
    }

    #[test]
    fn unknown_types_are_returned() {
        let folder = tempfile::tempdir().unwrap();
        let store = SampleStore::new(folder.path());
        store.save("t", &[1.0]).unwrap();
        assert_eq!(store.remove_all(&["t".into(), "u".into()]).unwrap(), ["u"]);
        assert_eq!(store.all().unwrap(), []);
    }
}
