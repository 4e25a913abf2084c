//! Who may use a store of files beside its owner.

#[cfg(feature = "sqlite")]
use std::fs::{File, OpenOptions, Permissions};
#[cfg(feature = "sqlite")]
use std::io;
#[cfg(feature = "sqlite")]
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use crate::error::StoreError;

/// The mode of a file that a store makes.
///
/// Who may read the file may also lock it, and keep everybody from leading; so
/// nobody but its owner may, unless the URL says otherwise. A directory of registers
/// has the same mode, and may be searched by those who may read it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum FileMode {
    /// 0600: its owner alone reads and writes.
    #[default]
    Owner,
    /// 0640: its group reads.
    GroupReads,
    /// 0660: its group reads and writes.
    GroupWrites,
}

impl FileMode {
    /// What stands in a URL, `0600`, `0640` or `0660`.
    ///
    /// # Errors
    /// [`StoreError::Broken`] if it is something else.
    pub fn parse(text: &str) -> Result<Self, StoreError> {
        match text {
            "0600" => Ok(Self::Owner),
            "0640" => Ok(Self::GroupReads),
            "0660" => Ok(Self::GroupWrites),
            _ => Err(StoreError::broken(format!(
                "expected mode=0600, mode=0640 or mode=0660, found mode={text}"
            ))),
        }
    }

    pub(super) const fn bits(self) -> u32 {
        match self {
            Self::Owner => 0o600,
            Self::GroupReads => 0o640,
            Self::GroupWrites => 0o660,
        }
    }

    /// The same for a directory: 0700, 0750 or 2770, in which files get its group.
    #[cfg(feature = "file")]
    pub(super) const fn directory_bits(self) -> u32 {
        match self {
            Self::Owner => 0o700,
            Self::GroupReads => 0o750,
            Self::GroupWrites => 0o2770,
        }
    }

    /// Makes a file of this mode under any umask. Fails if one is there.
    #[cfg(feature = "sqlite")]
    pub(super) fn create(self, path: &Path) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        let file = options.open(path)?;
        if self != Self::Owner {
            file.set_permissions(Permissions::from_mode(self.bits()))?;
        }
        Ok(file)
    }

    /// Says so if others may use the file who are not meant to.
    pub(super) fn warn_if_wider(self, path: &Path) {
        let found = std::fs::metadata(path).map_or(0, |it| it.permissions().mode() & 0o777);
        let wanted = if path.is_dir() {
            self.bits() | (self.bits() & 0o444) >> 2
        } else {
            self.bits()
        };
        if found & !wanted & 0o077 != 0 {
            let path = path.display();
            tracing::warn!(
                "{path}: expected mode {wanted:04o}, found {found:04o}: other accounts of this \
                 machine can read it, and who can read it can keep everybody from leading; chmod \
                 {wanted:04o} {path}, or say who shall ({path}?mode=0640 or ?mode=0660)"
            );
        }
    }
}
