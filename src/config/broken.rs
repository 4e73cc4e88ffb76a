//! Reads which promise a build with the feature `broken` is to break.
//! Promises that a name nobody knows is an error and not a sound server.
//! Does not exist in any other build.

use super::{Problem, Problems, environment};
use crate::lifecycle::broken::Break;

/// The variable that names it.
pub const NAME: &str = "FOREBAY_BROKEN";

/// Chooses what the environment says; nothing when it says nothing.
///
/// # Errors
/// When there is no such promise.
pub fn choose() -> Result<(), Problems> {
    let Some(wanted) = environment(NAME) else { return Ok(()) };
    match Break::ALL.iter().find(|(name, _)| *name == wanted) {
        Some((_, broken)) => {
            broken.choose();
            Ok(())
        }
        None => Err(Problems(vec![Problem {
            name: NAME,
            problem: format!("{wanted:?} is not one of those that can be broken"),
        }])),
    }
}
