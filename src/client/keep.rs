//! Where a client's watermark is kept between two runs: in a file, or wherever an application likes.
//! Promises that a file holds the old watermark or the new one, whatever happens while it is written.
//! Does not sync: an older watermark after a power cut only means that some events come again.

use std::fmt::Debug;
use std::fs;
use std::io::{Error, ErrorKind, Result};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// What is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// Everything up to this seq was dealt with.
    pub watermark: u64,
    /// The log in which that seq means something.
    pub epoch: Option<String>,
}

/// A place for it.
pub trait Keep: Debug + Send + Sync {
    /// What was saved last; `None` when nothing was.
    ///
    /// # Errors
    /// When it cannot be read.
    fn load(&mut self) -> Result<Option<Kept>>;

    /// Takes the place of what was saved before.
    ///
    /// # Errors
    /// When it cannot be written.
    fn save(&mut self, kept: &Kept) -> Result<()>;
}

/// A file with one line of JSON. Each client needs one of its own.
#[derive(Clone, Debug)]
pub struct InFile(pub PathBuf);

impl Keep for InFile {
    fn load(&mut self) -> Result<Option<Kept>> {
        match fs::read(&self.0) {
            Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(|_unread| {
                let path = self.0.display();
                let why = format!("{path} holds no watermark; without it reading begins anew");
                Error::new(ErrorKind::InvalidData, why)
            }),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(self.named(&error)),
        }
    }

    fn save(&mut self, kept: &Kept) -> Result<()> {
        let mut name = self.0.clone().into_os_string();
        name.push(".new");
        let beside = PathBuf::from(name);
        let written = fs::write(&beside, serde_json::to_vec(kept)?);
        written.and_then(|()| fs::rename(&beside, &self.0)).map_err(|error| self.named(&error))
    }
}

impl InFile {
    /// The error, with the file of which it is.
    fn named(&self, error: &Error) -> Error {
        Error::new(error.kind(), format!("{}: {error}", self.0.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_gives_back_what_was_saved_last_and_damage_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = InFile(folder.path().join("watermark"));
        assert_eq!(file.load().unwrap(), None);
        for watermark in [1, 2] {
            let kept = Kept { watermark, epoch: Some("e".to_owned()) };
            file.save(&kept).unwrap();
            assert_eq!(file.load().unwrap(), Some(kept));
        }
        fs::write(&file.0, "{").unwrap();
        let unread = file.load().unwrap_err();
        assert!(unread.to_string().contains(&*file.0.to_string_lossy()), "{unread}");
    }
}
