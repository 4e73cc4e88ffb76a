//! Services whose disk is slow: each sync takes longer, without privileges, as on a machine that they do not have.
//! Promises the same programs otherwise: they keep their process numbers, arguments and exit codes.
//! Does not install strace, which holds the syncs up.

use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::time::Duration;

use crate::sandbox::{Binaries, Error};

/// The calls that wait until a disk has what was written. `sync_file_range` is not among them: Postgres calls it to have
/// pages written back early, and waits for none.
const CALLS: &str = "fsync,fdatasync";

impl Binaries {
    /// The same programs, with their syncs made longer by `delay`. Their stand-ins are written into `folder`.
    ///
    /// # Errors
    /// [`Error::Io`], also when there is no strace.
    pub fn with_slow_syncs(self, folder: &Path, delay: Duration) -> Result<Self, Error> {
        let strace = std::process::Command::new("strace").arg("--version").output();
        let written = strace.and_then(|_version| self.write(folder, delay));
        written.map_err(Error::io("slow syncs down with strace in", folder))
    }

    fn write(self, folder: &Path, delay: Duration) -> io::Result<Self> {
        // Absolute, because services run in places of their own.
        let postgres_bin = fs::canonicalize(folder)?.join("slow");
        fs::create_dir_all(&postgres_bin)?;
        for name in ["initdb", "psql"] {
            symlink(self.postgres_bin.join(name), postgres_bin.join(name))?;
        }
        stand_in(&postgres_bin.join("postgres"), &self.postgres_bin.join("postgres"), delay)?;
        let nats_server = postgres_bin.join("nats-server");
        stand_in(&nats_server, &self.nats_server, delay)?;
        // Postgres runs as somebody else when this is root.
        fs::set_permissions(&postgres_bin, fs::Permissions::from_mode(0o755))?;
        Ok(Self { postgres_bin, nats_server })
    }
}

/// A script that becomes the program, watched by a strace of its own that stops it at a sync only.
fn stand_in(place: &Path, program: &Path, delay: Duration) -> io::Result<()> {
    fs::write(place, script(&program.to_string_lossy(), delay))?;
    fs::set_permissions(place, fs::Permissions::from_mode(0o755))
}

fn script(program: &str, delay: Duration) -> String {
    let (program, micros) = (program.replace('\'', r"'\''"), delay.as_micros());
    format!(
        "#!/bin/sh\nexec strace -D -f --seccomp-bpf -qqq -o /dev/null -e trace={CALLS} \
         -e inject={CALLS}:delay_exit={micros} -- '{program}' \"$@\"\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stand_in_becomes_its_program_whatever_its_path_and_delays_each_sync() {
        let text = script("/opt/ann's/nats-server", Duration::from_millis(2));
        assert!(text.starts_with("#!/bin/sh\nexec strace -D "), "{text}");
        assert!(text.contains("-e inject=fsync,fdatasync:delay_exit=2000 "), "{text}");
        assert!(text.ends_with(" -- '/opt/ann'\\''s/nats-server' \"$@\"\n"), "{text}");
    }
}
