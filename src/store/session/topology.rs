//! Pure: what stands between this program and Postgres, and what that forbids.
//! Promises the one place that says what a pooler of transactions takes away.
//! Does not find it out; the configuration says it.

/// What stands between.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Topology {
    /// Nothing: a connection is a session of Postgres.
    #[default]
    Direct,
    /// A pooler that gives each transaction whatever session is free, such as `PgBouncer` with `pool_mode =
    /// transaction`. A session's settings, prepared statements and pid are somebody else's the next moment.
    TransactionPooler,
}

impl Topology {
    /// The word in the configuration.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::TransactionPooler => "transaction_pooler",
        }
    }

    /// The topology of that word.
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Direct, Self::TransactionPooler].into_iter().find(|one| one.as_str() == text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_topology_is_found_by_its_word() {
        for topology in [Topology::Direct, Topology::TransactionPooler] {
            assert_eq!(Topology::parse(topology.as_str()), Some(topology));
        }
        assert_eq!(Topology::parse("Direct"), None);
        assert_eq!(Topology::parse("session_pooler"), None);
    }
}
