//! Which addresses pushes may reach.
//!
//! A customer's URL makes *our* machine connect somewhere. Without a filter, `http://169.254.169.254/…` or
//! a name that resolves to `10.0.0.5` reads what only this machine can see. So each address is judged, and
//! judged where it is used:
//!
//! ```text
//!  http://10.0.0.5/       ── check_literal ──▶ permits(10.0.0.5)        a resolver is never asked for these
//!  http://hooks.example/  ── PermittedAddresses ─▶ permits(each one)    at connect, so the answer that was
//!                                                                       judged is the one connected to
//! ```
//!
//! IPv4 is a list of exceptions. IPv6 is the reverse: only global unicast (`2000::/3`) passes, less a few
//! exceptions. Addresses that carry an IPv4 address (mapped, compatible, NAT64, 6to4) get that one's verdict.
//!
//! Some ranges no setting opens: metadata services, link-local, multicast, documentation, reserved.
//!
//! Limit: a gateway with a private translation prefix of its own is not recognised.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use url::{Host, Url};

/// Which addresses, other than the public ones, pushes may reach.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EgressPolicy {
    /// This machine itself.
    pub allow_loopback: bool,
    /// Private networks, and this machine itself.
    pub allow_private: bool,
}

/// An address that pushes may not reach.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("pushes may not reach {ip}, {range}")]
pub struct Blocked {
    /// The address.
    pub ip: IpAddr,
    /// What kind of address it is, for a person.
    pub range: &'static str,
}

/// What it takes to be let through.
#[derive(Clone, Copy)]
enum Range {
    Loopback,
    Private(&'static str),
    Never(&'static str),
}
use Range::{Loopback, Never, Private};

/// Single addresses of services that hand out a machine's credentials.
const METADATA: &[IpAddr] = &[
    v4(169, 254, 169, 254),
    v4(100, 100, 100, 200),
    v4(168, 63, 129, 16),
    v6([0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254]),
    v6([0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254]),
];

/// IPv4 networks that are not public, as (network, prefix length, range).
const V4_RANGES: &[(Ipv4Addr, u32, Range)] = &[
    (Ipv4Addr::UNSPECIFIED, 8, Never("an unspecified address")),
    (Ipv4Addr::new(10, 0, 0, 0), 8, Private("a private address")),
    (
        Ipv4Addr::new(100, 64, 0, 0),
        10,
        Private("a carrier's shared address"),
    ),
    (Ipv4Addr::new(127, 0, 0, 0), 8, Loopback),
    (
        Ipv4Addr::new(169, 254, 0, 0),
        16,
        Never("a link-local address"),
    ),
    (
        Ipv4Addr::new(172, 16, 0, 0),
        12,
        Private("a private address"),
    ),
    (Ipv4Addr::new(192, 0, 0, 0), 24, Never("a reserved address")),
    (
        Ipv4Addr::new(192, 0, 2, 0),
        24,
        Never("a documentation address"),
    ),
    (
        Ipv4Addr::new(192, 88, 99, 0),
        24,
        Never("a reserved address"),
    ),
    (
        Ipv4Addr::new(192, 168, 0, 0),
        16,
        Private("a private address"),
    ),
    (
        Ipv4Addr::new(198, 18, 0, 0),
        15,
        Never("a benchmarking address"),
    ),
    (
        Ipv4Addr::new(198, 51, 100, 0),
        24,
        Never("a documentation address"),
    ),
    (
        Ipv4Addr::new(203, 0, 113, 0),
        24,
        Never("a documentation address"),
    ),
    (Ipv4Addr::new(224, 0, 0, 0), 4, Never("a multicast address")),
    (Ipv4Addr::BROADCAST, 32, Never("the broadcast address")),
    (Ipv4Addr::new(240, 0, 0, 0), 4, Never("a reserved address")),
];

/// IPv6 networks by the first match, as (network, prefix length, range); `None` is public.
const V6_RANGES: &[(Ipv6Addr, u32, Option<Range>)] = &[
    (Ipv6Addr::LOCALHOST, 128, Some(Loopback)),
    (
        Ipv6Addr::UNSPECIFIED,
        128,
        Some(Never("an unspecified address")),
    ),
    (net6(0xfc00, 0), 7, Some(Private("a unique-local address"))),
    (net6(0xfe80, 0), 10, Some(Never("a link-local address"))),
    (net6(0xff00, 0), 8, Some(Never("a multicast address"))),
    // Teredo, benchmarking and other special assignments.
    (net6(0x2001, 0), 23, Some(Never("a reserved address"))),
    (
        net6(0x2001, 0xdb8),
        32,
        Some(Never("a documentation address")),
    ),
    (net6(0x3fff, 0), 20, Some(Never("a documentation address"))),
    (net6(0x2000, 0), 3, None),
    (Ipv6Addr::UNSPECIFIED, 0, Some(Never("a reserved address"))),
];

impl EgressPolicy {
    /// Whether pushes may connect to `ip`.
    pub fn permits(&self, ip: IpAddr) -> Result<(), Blocked> {
        let refusal = match range_of(ip) {
            Some(Loopback) if !self.allow_loopback && !self.allow_private => "a loopback address",
            Some(Private(name)) if !self.allow_private => name,
            Some(Never(name)) => name,
            _ => return Ok(()),
        };
        Err(Blocked { ip, range: refusal })
    }

    /// Judges the host of `url` when it is an address. Names are judged when they are resolved.
    pub fn check_literal(&self, url: &Url) -> Result<(), Blocked> {
        match url.host() {
            Some(Host::Ipv4(ip)) => self.permits(ip.into()),
            Some(Host::Ipv6(ip)) => self.permits(ip.into()),
            Some(Host::Domain(_)) | None => Ok(()),
        }
    }

    /// The addresses of `found` that may be reached. An error when there are none.
    fn filter(&self, found: impl Iterator<Item = SocketAddr>) -> io::Result<Vec<SocketAddr>> {
        let mut refused = None;
        let mut permitted = Vec::new();
        for address in found {
            match self.permits(address.ip()) {
                Ok(()) => permitted.push(address),
                Err(blocked) => refused = Some(blocked),
            }
        }
        match refused {
            Some(blocked) if permitted.is_empty() => {
                Err(io::Error::new(io::ErrorKind::PermissionDenied, blocked))
            }
            _ if permitted.is_empty() => Err(io::Error::new(
                io::ErrorKind::NotFound,
                "the name has no address",
            )),
            _ => Ok(permitted),
        }
    }
}

/// Resolves names as the machine does and passes on the permitted addresses only.
pub struct PermittedAddresses(pub EgressPolicy);

impl Resolve for PermittedAddresses {
    fn resolve(&self, name: Name) -> Resolving {
        let policy = self.0;
        Box::pin(async move {
            // Runs on tokio's blocking pool. The client puts in the port.
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let permitted: Addrs = Box::new(policy.filter(found)?.into_iter());
            Ok(permitted)
        })
    }
}

fn range_of(ip: IpAddr) -> Option<Range> {
    if METADATA.contains(&ip) {
        return Some(Never("a metadata service"));
    }
    match ip {
        IpAddr::V4(ip) => {
            let found = V4_RANGES.iter().find(|(network, prefix, _)| {
                let mask = u32::MAX << (32 - prefix);
                u32::from(ip) & mask == u32::from(*network)
            });
            found.map(|(_, _, range)| *range)
        }
        IpAddr::V6(ip) => match embedded(ip) {
            Some(inner) => range_of(inner.into()),
            None => {
                let found = V6_RANGES.iter().find(|(network, prefix, _)| {
                    let mask = u128::MAX.checked_shl(128 - prefix).unwrap_or(0);
                    u128::from(ip) & mask == u128::from(*network)
                });
                found.and_then(|(_, _, range)| *range)
            }
        },
    }
}

/// The IPv4 address that an IPv6 address stands for, if it does.
fn embedded(ip: Ipv6Addr) -> Option<Ipv4Addr> {
    let last = |high: u16, low: u16| Some(Ipv4Addr::from((u32::from(high) << 16) | u32::from(low)));
    match ip.segments() {
        // `::` and `::1` are addresses of their own.
        [0, 0, 0, 0, 0, 0, 0, 0 | 1] => None,
        // Compatible, mapped, translated, NAT64.
        [0, 0, 0, 0, 0, 0, high, low]
        | [0, 0, 0, 0, 0, 0xffff, high, low]
        | [0, 0, 0, 0, 0xffff, 0, high, low]
        | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => last(high, low),
        // 6to4.
        [0x2002, high, low, ..] => last(high, low),
        _ => None,
    }
}

const fn v4(a: u8, b: u8, c: u8, d: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(a, b, c, d))
}

const fn v6(segments: [u16; 8]) -> IpAddr {
    let [a, b, c, d, e, f, g, h] = segments;
    IpAddr::V6(Ipv6Addr::new(a, b, c, d, e, f, g, h))
}

const fn net6(first: u16, second: u16) -> Ipv6Addr {
    Ipv6Addr::new(first, second, 0, 0, 0, 0, 0, 0)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    const PUBLIC_ONLY: EgressPolicy = EgressPolicy {
        allow_loopback: false,
        allow_private: false,
    };
    const WITH_LOOPBACK: EgressPolicy = EgressPolicy {
        allow_loopback: true,
        allow_private: false,
    };
    const WITH_PRIVATE: EgressPolicy = EgressPolicy {
        allow_loopback: false,
        allow_private: true,
    };

    /// Whether `ip` is let through by each of the three policies above, in their order.
    fn verdicts(ip: &str) -> [bool; 3] {
        let ip = ip.parse().unwrap();
        [PUBLIC_ONLY, WITH_LOOPBACK, WITH_PRIVATE].map(|policy| policy.permits(ip).is_ok())
    }

    #[test]
    fn public_addresses_pass_under_every_policy() {
        for ip in [
            "1.1.1.1",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "126.255.255.255",
            "128.0.0.0",
            "172.15.255.255",
            "172.32.0.0",
            "192.0.1.0",
            "192.167.255.255",
            "192.169.0.0",
            "198.17.255.255",
            "198.20.0.0",
            "223.255.255.255",
            "2606:4700::1111",
            "2001:4860::8888",
            "2a00:1450::1",
            "::ffff:1.1.1.1",
            "64:ff9b::1.1.1.1",
            "2002:101:101::1",
        ] {
            assert_eq!(verdicts(ip), [true; 3], "{ip}");
        }
    }

    #[test]
    fn loopback_passes_when_loopback_or_private_is_allowed() {
        for ip in [
            "127.0.0.1",
            "127.255.255.255",
            "::1",
            "::ffff:127.0.0.1",
            "::127.0.0.1",
            "::ffff:0:127.0.0.1",
            "64:ff9b::7f00:1",
            "2002:7f00:1::",
        ] {
            assert_eq!(verdicts(ip), [false, true, true], "{ip}");
        }
    }

    #[test]
    fn private_addresses_pass_only_when_private_is_allowed() {
        for ip in [
            "10.0.0.0",
            "10.255.255.255",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.0.1",
            "100.64.0.1",
            "100.127.255.255",
            "fc00::1",
            "fdff::1",
            "::ffff:10.1.2.3",
            "::10.1.2.3",
            "64:ff9b::192.168.1.1",
            "2002:a00:1::1",
        ] {
            assert_eq!(verdicts(ip), [false, false, true], "{ip}");
        }
    }

    #[test]
    fn no_setting_opens_the_rest() {
        for ip in [
            "0.0.0.0",
            "0.1.2.3",
            "169.254.0.1",
            "169.254.169.254",
            "100.100.100.200",
            "168.63.129.16",
            "192.0.0.192",
            "192.0.2.1",
            "198.51.100.1",
            "203.0.113.1",
            "198.18.0.1",
            "192.88.99.1",
            "224.0.0.1",
            "239.255.255.255",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "fe80::1",
            "febf::1",
            "fec0::1",
            "ff02::1",
            "2001:db8::1",
            "3fff::1",
            "2001::1",
            "2001:2::1",
            "100::1",
            "4000::1",
            "fd00:ec2::254",
            "fd20:ce::254",
            "::ffff:169.254.169.254",
            "::169.254.169.254",
            "64:ff9b::169.254.169.254",
            "64:ff9b:1::1",
            "2002:a9fe:a9fe::",
            "::ffff:0.0.0.0",
        ] {
            assert_eq!(verdicts(ip), [false; 3], "{ip}");
        }
    }

    #[test]
    fn a_literal_is_recognised_however_it_is_written() {
        for url in [
            "http://127.0.0.1/",
            "http://127.1/",
            "http://0x7f.1/",
            "http://2130706433/",
            "http://0177.0.0.1:8080/",
            "http://127.0.0.1./",
            "http://[::1]/",
            "http://[::ffff:7f00:1]/",
            "http://user@127.0.0.1/",
            "http://１２７.0.0.1/",
        ] {
            let url = Url::parse(url).unwrap();
            assert!(PUBLIC_ONLY.check_literal(&url).is_err(), "{url}");
        }
        for url in [
            "http://1.1.1.1/",
            "http://[2606:4700::1111]/",
            "https://example.com/",
        ] {
            let url = Url::parse(url).unwrap();
            assert_eq!(PUBLIC_ONLY.check_literal(&url), Ok(()), "{url}");
        }
    }

    #[test]
    fn of_the_resolved_addresses_only_the_permitted_are_used() {
        let [public, private]: [SocketAddr; 2] =
            ["1.1.1.1:0", "10.0.0.1:0"].map(|text| text.parse().unwrap());
        let kept = PUBLIC_ONLY.filter([private, public].into_iter()).unwrap();
        assert_eq!(kept, [public]);

        let refused = PUBLIC_ONLY.filter([private].into_iter()).unwrap_err();
        assert!(refused.get_ref().unwrap().is::<Blocked>());
        assert_eq!(
            refused.to_string(),
            "pushes may not reach 10.0.0.1, a private address"
        );

        let nothing = PUBLIC_ONLY.filter(std::iter::empty()).unwrap_err();
        assert_eq!(nothing.kind(), io::ErrorKind::NotFound);
    }
}
