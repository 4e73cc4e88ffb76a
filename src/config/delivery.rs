//! Pure: the settings of deliveries.
//! Promises settings within their bounds.
//! Does not read the environment.

use std::time::Duration;

use super::Reader;
use crate::delivery::{Settings, attempt::Times, egress::Egress, slots::Sizes};

impl Reader<'_> {
    /// Whether this node routes, and how deliveries are made; `None` when this node makes none.
    pub(super) fn delivery(&mut self) -> (bool, Option<Settings>) {
        let (routes, delivers) = self.deliver();
        let whole = self.number("DELIVERY_TIMEOUT_MS", 100..=60_000);
        let connect = self.number("DELIVERY_CONNECT_TIMEOUT_MS", 100..=60_000);
        if connect > whole {
            let problem = "is longer than DELIVERY_TIMEOUT_MS".to_owned();
            self.add("DELIVERY_CONNECT_TIMEOUT_MS", problem);
        }
        let sizes = Sizes {
            high: self.size("DELIVERY_SLOTS_HIGH", 1..=1_000),
            standard: self.size("DELIVERY_SLOTS_STANDARD", 1..=1_000),
            bulk: self.size("DELIVERY_SLOTS_BULK", 1..=1_000),
        };
        let list = self.value("FOREBAY_EGRESS_ALLOW").unwrap_or_default();
        let egress = Egress::parse(&list).map_err(|bad| {
            self.add("FOREBAY_EGRESS_ALLOW", bad.to_string());
        });
        let times =
            Times { whole: Duration::from_millis(whole), connect: Duration::from_millis(connect) };
        let settings = Settings { sizes, times, egress: egress.unwrap_or_default() };
        (routes, delivers.then_some(settings))
    }

    /// Whether this node routes, and whether it makes attempts.
    fn deliver(&mut self) -> (bool, bool) {
        let parsed = self.parse("FOREBAY_DELIVER", |text| match text {
            "on" => Some((true, true)),
            "route" => Some((true, false)),
            "off" => Some((false, false)),
            _ => None,
        });
        parsed.unwrap_or((true, true))
    }

    /// A setting that is on or off.
    pub(super) fn switch(&mut self, name: &'static str) -> bool {
        let parsed = self.parse(name, |text| match text {
            "on" => Some(true),
            "off" => Some(false),
            _ => None,
        });
        parsed.unwrap_or(true)
    }
}

#[cfg(test)]
mod tests {
    use crate::config::Config;

    fn problems(settings: &[(&str, &str)]) -> Vec<&'static str> {
        let base = [
            ("DATABASE_URL", "postgres://h/d"),
            ("FOREBAY_ADMIN_TOKEN", "a-long-enough-operator-token"),
        ];
        let find = |name: &str| {
            let set = settings.iter().chain(&base).find(|(set, _)| *set == name);
            set.map(|(_, value)| (*value).to_owned())
        };
        Config::read(&find).map_or_else(
            |problems| problems.0.into_iter().map(|problem| problem.name).collect(),
            |_config| Vec::new(),
        )
    }

    #[test]
    fn settings_out_of_their_bounds_are_named() {
        assert!(problems(&[("FOREBAY_EGRESS_ALLOW", "127.0.0.0/8,hooks.internal:80")]).is_empty());
        assert!(problems(&[("FOREBAY_DELIVER", "off")]).is_empty());
        assert!(problems(&[("FOREBAY_DELIVER", "route")]).is_empty());
        for (name, value) in [
            ("FOREBAY_DELIVER", "maybe"),
            ("FOREBAY_EGRESS_ALLOW", "127.0.0.0/33"),
            ("DELIVERY_TIMEOUT_MS", "60001"),
            ("DELIVERY_CONNECT_TIMEOUT_MS", "16000"),
            ("DELIVERY_SLOTS_BULK", "0"),
        ] {
            assert_eq!(problems(&[(name, value)]), [name], "{value}");
        }
    }
}
