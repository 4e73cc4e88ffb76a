//! Pure: which addresses deliveries may go to.
//! Promises that nothing but public addresses passes, in whatever form they are written, unless they are listed.
//! Does not resolve names; the address that is judged is the one that is connected to.

use core::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

/// Most entries of an allow list.
const ENTRIES_MAX: usize = 100;

/// Endings of names that never are public.
const PRIVATE_NAMES: [&str; 6] =
    ["localhost", "local", "internal", "intranet", "home.arpa", "localdomain"];

/// Networks of IPv4 that are not public (the IANA registry of special-purpose addresses, with multicast and class E).
const NOT_PUBLIC_4: [(u32, u32); 18] = [
    // The address under which a large cloud serves its machines' metadata.
    (u32::from_be_bytes([168, 63, 129, 16]), 32),
    net(0, 0, 0, 8),
    net(10, 0, 0, 8),
    net(100, 64, 0, 10),
    net(127, 0, 0, 8),
    net(169, 254, 0, 16),
    net(172, 16, 0, 12),
    net(192, 0, 0, 24),
    net(192, 0, 2, 24),
    net(192, 31, 196, 24),
    net(192, 52, 193, 24),
    net(192, 88, 99, 24),
    net(192, 168, 0, 16),
    net(192, 175, 48, 24),
    net(198, 18, 0, 15),
    net(198, 51, 100, 24),
    net(203, 0, 113, 24),
    net(224, 0, 0, 3),
];

/// Networks of IPv6 inside of `2000::/3` that are not public or hide another address: Teredo and the rest of the
/// special-purpose block, documentation, 6to4. Everything outside of `2000::/3` is not public.
const NOT_PUBLIC_6: [(Ipv6Addr, u32); 4] = [
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 23),
    (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0), 32),
    (Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0), 16),
    (Ipv6Addr::new(0x3fff, 0, 0, 0, 0, 0, 0, 0), 20),
];

/// First address and length of an IPv4 network.
const fn net(a: u8, b: u8, c: u8, bits: u32) -> (u32, u32) {
    (u32::from_be_bytes([a, b, c, 0]), bits)
}

/// A destination that is not allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("deliveries do not go to this address")]
pub struct Blocked;

/// A text that is no allow list.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no address, network or host name, with or without a port")]
pub struct BadEntry(String);

/// What may be connected to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Egress {
    allowed: Arc<[Entry]>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    to: To,
    port: Option<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum To {
    Network(IpAddr, u32),
    Name(String),
}

/// Where a URL leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Destination {
    /// Name or address.
    pub host: Host,
    /// The port.
    pub port: u16,
}

/// The host of a URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Host {
    /// A name, to be resolved; each of its addresses is judged.
    Name(String),
    /// An address that was judged already.
    Address(IpAddr),
}

impl Egress {
    /// From a list of addresses, networks and names with commas between, each with `:port` or without: what is allowed
    /// beside public addresses. An empty text allows nothing else.
    ///
    /// # Errors
    /// [`BadEntry`] for the first that is none of these.
    pub fn parse(list: &str) -> Result<Self, BadEntry> {
        let entries = list.split(',').map(str::trim).filter(|entry| !entry.is_empty());
        let entries = entries.take(ENTRIES_MAX + 1).map(Entry::parse);
        let entries: Vec<Entry> = entries.collect::<Result<_, _>>()?;
        if entries.len() > ENTRIES_MAX {
            return Err(BadEntry(format!("more than {ENTRIES_MAX} entries")));
        }
        Ok(Self { allowed: entries.into() })
    }

    /// Whether a URL may lead to a delivery, as far as its text says.
    ///
    /// # Errors
    /// [`Blocked`] when its host is an address that is not public, a name that never is, or in a form that programs
    /// read differently.
    pub fn check(
        &self,
        scheme: &str,
        host: &str,
        port: Option<u16>,
    ) -> Result<Destination, Blocked> {
        let port = match (port, scheme) {
            (Some(port), "http" | "https") => port,
            (None, "http") => 80,
            (None, "https") => 443,
            _ => return Err(Blocked),
        };
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        if let Ok(address) = bare.unwrap_or(host).parse::<IpAddr>() {
            let host = Host::Address(address);
            let passes = self.permits(address, port, "");
            return if passes { Ok(Destination { host, port }) } else { Err(Blocked) };
        }
        let name = host.to_ascii_lowercase();
        if self.names(&name, port) || (is_plain(&name) && !is_private(&name)) {
            return Ok(Destination { host: Host::Name(name), port });
        }
        Err(Blocked)
    }

    /// Whether this address may be connected to, for a URL with this host.
    pub fn permits(&self, address: IpAddr, port: u16, name: &str) -> bool {
        let in_entry = |entry: &Entry| match &entry.to {
            To::Network(network, bits) => contains(*network, *bits, address),
            To::Name(_) => false,
        };
        is_public(address)
            || self.names(name, port)
            || self.allowed.iter().any(|e| e.takes(port) && in_entry(e))
    }

    fn names(&self, name: &str, port: u16) -> bool {
        let is_named = |entry: &Entry| match &entry.to {
            To::Name(own) => own == name,
            To::Network(..) => false,
        };
        self.allowed.iter().any(|entry| entry.takes(port) && is_named(entry))
    }
}

impl Entry {
    fn takes(&self, port: u16) -> bool {
        self.port.is_none_or(|own| own == port)
    }

    fn parse(text: &str) -> Result<Self, BadEntry> {
        let bad = || BadEntry(text.to_owned());
        if let Some(to) = To::parse(text) {
            return Ok(Self { to, port: None });
        }
        let (host, port) = text.rsplit_once(':').ok_or_else(bad)?;
        let host = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
        let port = port.parse().ok().filter(|port| *port > 0);
        match (To::parse(host), port) {
            (Some(to), Some(port)) => Ok(Self { to, port: Some(port) }),
            _ => Err(bad()),
        }
    }
}

impl To {
    fn parse(text: &str) -> Option<Self> {
        if let Ok(address) = text.parse::<IpAddr>() {
            return Some(Self::Network(address, if address.is_ipv4() { 32 } else { 128 }));
        }
        if let Some((network, bits)) = text.split_once('/') {
            let (network, bits) = (network.parse::<IpAddr>().ok()?, bits.parse::<u32>().ok()?);
            let most = if network.is_ipv4() { 32 } else { 128 };
            return (bits <= most).then_some(Self::Network(network, bits));
        }
        let name = text.to_ascii_lowercase();
        is_plain(&name).then_some(Self::Name(name))
    }
}

/// Whether a host is a name that every program reads as one: its last label is no number, there is no trailing dot.
fn is_plain(name: &str) -> bool {
    let label = |label: &str| {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || b"-_".contains(&b);
        (1..=63).contains(&label.len()) && label.bytes().all(allowed)
    };
    let last = name.rsplit('.').next().unwrap_or_default();
    let numeric = last.bytes().all(|b| b.is_ascii_digit()) || last.starts_with("0x");
    name.len() <= 253 && name.split('.').all(label) && !numeric
}

fn is_private(name: &str) -> bool {
    !name.contains('.')
        || PRIVATE_NAMES.iter().any(|ending| {
            name.strip_suffix(ending).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
        })
}

fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => {
            let bits = u32::from(address);
            NOT_PUBLIC_4.iter().all(|(network, length)| (bits ^ network) >> (32 - length) != 0)
        }
        IpAddr::V6(address) => {
            contains(IpAddr::V6(Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 0)), 3, address.into())
                && NOT_PUBLIC_6
                    .iter()
                    .all(|(network, bits)| !contains((*network).into(), *bits, address.into()))
        }
    }
}

fn contains(network: IpAddr, bits: u32, address: IpAddr) -> bool {
    match (network, address) {
        (IpAddr::V4(network), IpAddr::V4(address)) => {
            let differing = u32::from(network) ^ u32::from(address);
            differing.checked_shr(32 - bits).unwrap_or(0) == 0
        }
        (IpAddr::V6(network), IpAddr::V6(address)) => {
            let differing = u128::from(network) ^ u128::from(address);
            differing.checked_shr(128 - bits).unwrap_or(0) == 0
        }
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
    }
}

#[cfg(test)]
mod tests {
    use core::net::Ipv4Addr;

    use proptest::prelude::*;

    use super::*;

    fn checked(host: &str) -> Result<Destination, Blocked> {
        Egress::default().check("https", host, None)
    }

    #[test]
    fn public_hosts_pass() {
        for host in [
            "example.com",
            "a-b.example.co",
            "93.184.215.14",
            "[2606:2800:21f::1]",
            "xn--mnchen-3ya.de",
        ] {
            assert!(checked(host).is_ok(), "{host}");
        }
        assert_eq!(checked("EXAMPLE.com").unwrap().host, Host::Name("example.com".into()));
        assert_eq!(Egress::default().check("http", "example.com", None).unwrap().port, 80);
    }

    #[test]
    fn addresses_of_machines_metadata_are_blocked_in_every_form() {
        for host in [
            "168.63.129.16",
            "169.254.169.254",
            "0251.0376.0251.0376",
            "0xa9fea9fe",
            "0XA9.0xfe.0xa9.0xfe",
            "2852039166",
            "169.254.43518",
            "169.254.169.254.",
            "100.100.100.200",
            "192.0.0.192",
            "[::ffff:169.254.169.254]",
            "[::ffff:a9fe:a9fe]",
            "[fd00:ec2::254]",
            "metadata.google.internal",
            "metadata",
        ] {
            assert_eq!(checked(host), Err(Blocked), "{host}");
        }
    }

    #[test]
    fn hosts_that_are_not_public_are_blocked_in_every_form() {
        for host in [
            "127.0.0.1",
            "127.9.9.9",
            "10.0.0.1",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "100.64.0.1",
            "0.0.0.0",
            "255.255.255.255",
            "224.0.0.1",
            "240.0.0.1",
            "198.18.0.1",
            "198.19.255.255",
            "192.0.2.1",
            "203.0.113.9",
            "192.88.99.1",
            "192.0.0.8",
            "[::1]",
            "[::]",
            "[fe80::1]",
            "[fc00::1]",
            "[fd12::1]",
            "[ff02::1]",
            "[fec0::1]",
            "[::ffff:127.0.0.1]",
            "[::ffff:8.8.8.8]",
            "[::127.0.0.1]",
            "[64:ff9b::7f00:1]",
            "[64:ff9b:1::1]",
            "[2002:7f00:1::]",
            "[2001::1]",
            "[2001:db8::1]",
            "[100::1]",
            "[5f00::1]",
            "0177.0.0.1",
            "0x7f.0.0.1",
            "0x7f000001",
            "127.1",
            "2130706433",
            "017700000001",
            "[0:0:0:0:0:ffff:7f00:1]",
            "[fe80::1%25lo]",
            "\u{ff11}\u{ff12}\u{ff17}.0.0.1",
            "127\u{3002}0\u{3002}0\u{3002}1",
            "LOCALHOST",
            "1.2.3.4.",
            "example.com.",
            "localhost",
            "a.localhost",
            "db.local",
            "x.internal",
            "printer",
            "",
            "a..b",
            "a%2eb.com",
            "u@example.com",
        ] {
            assert_eq!(checked(host), Err(Blocked), "{host}");
        }
        assert_eq!(Egress::default().check("ftp", "example.com", Some(21)), Err(Blocked));
    }

    #[test]
    fn what_is_listed_passes_and_nothing_beside_it() {
        let egress = Egress::parse("127.0.0.0/8:9000, [::1]:80, hooks.internal, 10.1.2.3").unwrap();
        let check = |host, port| egress.check("http", host, Some(port)).is_ok();
        assert!(check("127.0.0.1", 9_000) && !check("127.0.0.1", 9_001));
        assert!(check("[::1]", 80) && !check("[::1]", 81));
        assert!(check("hooks.internal", 1) && !check("other.internal", 1));
        assert!(check("10.1.2.3", 5) && !check("10.1.2.4", 5));
        let private = "192.168.0.9".parse().unwrap();
        assert!(
            egress.permits(private, 1, "hooks.internal") && !egress.permits(private, 1, "x.com")
        );
        assert!(Egress::parse(" ,").is_ok_and(|egress| egress == Egress::default()));
        for bad in ["127.0.0.1/33", "a b", "127.0.0.1:0", "::1:", "x:99999"] {
            assert!(Egress::parse(bad).is_err(), "{bad}");
        }
        assert!(Egress::parse(&"a.b,".repeat(ENTRIES_MAX + 1)).is_err());
    }

    proptest! {
        #[test]
        fn no_address_of_a_network_that_is_not_public_passes(which in 0..NOT_PUBLIC_4.len(), low: u32) {
            let (network, bits) = NOT_PUBLIC_4[which];
            let address = network | (low & u32::MAX.checked_shr(bits).unwrap_or(0));
            prop_assert!(!is_public(Ipv4Addr::from(address).into()));
            prop_assert!(!is_public(Ipv4Addr::from(address).to_ipv6_mapped().into()));
        }

        #[test]
        fn nothing_outside_of_the_public_block_of_ipv6_passes(high in 0_u8..=255, rest: u128) {
            prop_assume!(high >> 5 != 1);
            let address = (rest >> 8) | (u128::from(high) << 120);
            prop_assert!(!is_public(Ipv6Addr::from(address).into()));
        }
    }
}
