//! The user that Postgres runs as: the caller's own, or an unprivileged one when the caller is root,
//! whom Postgres refuses.
//! Promises to find one on every Linux. Does not create users.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;

use super::Error;

/// A user and its first group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Account {
    pub(super) user: u32,
    pub(super) group: u32,
}

/// `nobody` on every distribution that has not renamed it (Debian base-passwd).
const NOBODY: Account = Account { user: 65_534, group: 65_534 };

impl Account {
    /// Whom to become for Postgres; `None` when the caller may stay who it is.
    pub(super) fn to_become() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            return None;
        }
        let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
        let found = Self::named("postgres", &passwd).or_else(|| Self::named("nobody", &passwd));
        Some(found.unwrap_or(NOBODY))
    }

    /// The owner of what exists already, if that is not root.
    pub(super) fn of(path: &Path) -> Option<Self> {
        let owner = fs::metadata(path).ok()?;
        (owner.uid() != 0).then(|| Self { user: owner.uid(), group: owner.gid() })
    }

    /// The entry of that name in the text of /etc/passwd. An entry with number 0 is root's.
    fn named(name: &str, passwd: &str) -> Option<Self> {
        let line = passwd.lines().find(|line| line.split(':').next() == Some(name))?;
        let mut fields = line.split(':').skip(2);
        let user = fields.next()?.parse().ok()?;
        let group = fields.next()?.parse().ok()?;
        (user != 0).then_some(Self { user, group })
    }

    /// Whether the user can walk down to `path`, whose missing end does not count.
    pub(super) fn reaches(self, path: &Path) -> bool {
        path.ancestors().filter_map(|directory| fs::metadata(directory).ok()).all(|directory| {
            let needed = match (directory.uid() == self.user, directory.gid() == self.group) {
                (true, _) => 0o100,
                (false, true) => 0o010,
                (false, false) => 0o001,
            };
            directory.permissions().mode() & needed != 0
        })
    }
}

/// Makes a directory that only the account (or the caller) can enter. One that exists is taken
/// over only if it is that already: in a shared place it may be a trap.
pub(super) fn private_directory(path: &Path, account: Option<Account>) -> Result<(), Error> {
    let mut builder = fs::DirBuilder::new();
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    match builder.create(path) {
        Ok(()) => {
            let Some(account) = account else {
                return Ok(());
            };
            chown(path, Some(account.user), Some(account.group))
                .map_err(Error::io("hand over", path))
        }
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            let found = fs::symlink_metadata(path).map_err(Error::io("inspect", path))?;
            let user =
                account.map_or_else(|| rustix::process::geteuid().as_raw(), |account| account.user);
            let private = found.is_dir() && found.permissions().mode().trailing_zeros() >= 6;
            if private && found.uid() == user {
                Ok(())
            } else {
                Err(Error::NotPrivate { path: path.to_owned() })
            }
        }
        Err(error) => Err(Error::io("create", path)(error)),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::{Account, private_directory};
    use crate::sandbox::Error;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/bash\n\
        postgres-exporter:x:7:7::/:/bin/false\n\
        postgres:x:101:104:PostgreSQL administrator:/var/lib/postgresql:/bin/bash\n\
        toor:x:0:0::/root:/bin/sh\n";

    #[test]
    fn an_account_is_found_by_its_whole_name() {
        assert_eq!(Account::named("postgres", PASSWD), Some(Account { user: 101, group: 104 }));
        assert_eq!(Account::named("postgre", PASSWD), None);
        assert_eq!(Account::named("nobody", PASSWD), None);
    }

    #[test]
    fn root_under_another_name_is_not_taken() {
        assert_eq!(Account::named("toor", PASSWD), None);
    }

    #[test]
    fn a_directory_closed_to_others_is_out_of_reach() {
        let stranger = Account { user: 54_321, group: 54_321 };
        let root = tempfile::tempdir_in("/tmp").unwrap();
        let inner = root.path().join("inner");
        fs::set_permissions(root.path(), fs::Permissions::from_mode(0o700)).unwrap();
        assert!(!stranger.reaches(&inner));
        fs::set_permissions(root.path(), fs::Permissions::from_mode(0o711)).unwrap();
        assert!(stranger.reaches(&inner));
    }

    #[test]
    fn a_directory_open_to_others_is_not_private() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("sockets");
        private_directory(&path, None).unwrap();
        private_directory(&path, None).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o750)).unwrap();
        let refused = private_directory(&path, None).unwrap_err();
        assert!(matches!(refused, Error::NotPrivate { .. }));
    }
}
