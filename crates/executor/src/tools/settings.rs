//! How tools are set up: addresses of services, hosts that may be reached, prices of models, the folder of described
//! tools. From the environment and from the configuration file; the environment wins.

use crate::config::{self, Config};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;
use windlass_runbook::span;

/// How long "it is not there" must hold before it is believed: what was sent may still be on its way.
const PROBE_WAIT: Duration = Duration::from_secs(10);

/// Why tools cannot be set up.
#[derive(Debug, thiserror::Error)]
#[error("the configuration of tools, {place}: {what}")]
pub struct Error {
    /// The variable or file.
    pub place: String,
    /// What is wrong with it.
    pub what: String,
}

/// What a model costs, in millionths of a dollar for a million tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Price {
    /// Of what goes in.
    pub input: u64,
    /// Of what comes out.
    pub output: u64,
}

/// How tools are set up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Where Slack is.
    pub slack_url: String,
    /// Where GitHub is.
    pub github_url: String,
    /// Where ServiceNow is; nowhere until somebody says.
    pub servicenow_url: Option<String>,
    /// Where models that speak like OpenAI's are.
    pub openai_url: String,
    /// Where models that speak like Anthropic's are.
    pub anthropic_url: String,
    /// The provider and the model that are asked where a step names none.
    pub model: Option<(String, String)>,
    /// The hosts that `http` may reach; every public one where nothing is listed.
    pub allow: Vec<Host>,
    /// The hosts that `http` may reach although they are in a private network, or on this machine.
    pub allow_private: Vec<Host>,
    /// Prices by model.
    pub prices: BTreeMap<String, Price>,
    /// The folder of described tools.
    pub folder: Option<PathBuf>,
    /// How long "it is not there" must hold before it is believed.
    pub probe_wait: Duration,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            slack_url: "https://slack.com/api".to_owned(),
            github_url: "https://api.github.com".to_owned(),
            servicenow_url: None,
            openai_url: "https://api.openai.com/v1".to_owned(),
            anthropic_url: "https://api.anthropic.com/v1".to_owned(),
            model: None,
            allow: Vec::new(),
            allow_private: Vec::new(),
            prices: BTreeMap::new(),
            folder: None,
            probe_wait: PROBE_WAIT,
        }
    }
}

/// A host in a list: a name, an address, or `*.` and what names must end in; with a port where only that is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    name: String,
    below: bool,
    port: Option<u16>,
}

impl Host {
    /// Reads an entry of a list.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Host, String> {
        let text = text.trim().to_ascii_lowercase();
        let (rest, port) = match text.rsplit_once(':') {
            // An address of the sixth version has colons of its own, and its port stands after a bracket.
            Some((name, port)) if !name.contains(':') || name.ends_with(']') => {
                let port = port.parse().map_err(|_| format!("`{port}` is not a port"))?;
                (name, Some(port))
            }
            Some(_) | None => (text.as_str(), None),
        };
        let (name, below) = match rest.strip_prefix("*.") {
            Some(name) => (name, true),
            None => (rest, false),
        };
        let name = name.trim_start_matches('[').trim_end_matches(']').trim_end_matches('.').to_owned();
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':');
        if name.is_empty() || !name.chars().all(plain) {
            return Err(format!("`{text}` is not a host such as `api.example.com` or `*.example.com`"));
        }
        Ok(Host { name, below, port })
    }

    fn matches(&self, host: &str, port: u16) -> bool {
        let named = match self.below {
            true => host.strip_suffix(&self.name).is_some_and(|rest| rest.len() > 1 && rest.ends_with('.')),
            false => host == self.name,
        };
        named && self.port.is_none_or(|own| own == port)
    }
}

/// A host as it is compared: lower case, without brackets and without the dot at its end.
fn plain(host: &str) -> String {
    host.trim_start_matches('[').trim_end_matches(']').trim_end_matches('.').to_ascii_lowercase()
}

impl Settings {
    /// Whether `http` may speak to this host at all.
    #[must_use]
    pub fn allows(&self, host: &str, port: u16) -> bool {
        let host = plain(host);
        let listed = |list: &[Host]| list.iter().any(|entry| entry.matches(&host, port));
        self.allow.is_empty() || listed(&self.allow) || listed(&self.allow_private)
    }

    /// Whether `http` may connect to this host at this port although its address is not public.
    #[must_use]
    pub fn allows_private(&self, host: &str, port: u16) -> bool {
        let host = plain(host);
        self.allow_private.iter().any(|entry| entry.matches(&host, port))
    }

    /// What a model's tokens cost, where a price is known.
    #[must_use]
    pub fn cost_micros(&self, model: &str, input: u64, output: u64) -> u64 {
        let Some(price) = self.prices.get(model) else { return 0 };
        let part = |tokens: u64, price: u64| u128::from(tokens) * u128::from(price);
        let sum = part(input, price.input) + part(output, price.output);
        u64::try_from(sum.div_ceil(1_000_000)).unwrap_or(u64::MAX)
    }

    /// The settings that the configuration file says, and the environment, which wins.
    ///
    /// # Errors
    /// A value that means nothing.
    pub fn of(config: &Config) -> Result<Settings, Error> {
        let env = |name: &str| config.var(name);
        let mut settings = Settings::default();
        let url = |name: &str, into: &mut String| -> Result<(), Error> {
            if let Some(value) = env(name).filter(|value| !value.is_empty()) {
                *into = base(&value).map_err(|what| Error { place: name.to_owned(), what })?;
            }
            Ok(())
        };
        url("WINDLASS_SLACK_API_URL", &mut settings.slack_url)?;
        url("WINDLASS_GITHUB_API_URL", &mut settings.github_url)?;
        for name in ["OPENAI_BASE_URL", "WINDLASS_OPENAI_BASE_URL"] {
            url(name, &mut settings.openai_url)?;
        }
        for name in ["ANTHROPIC_BASE_URL", "WINDLASS_ANTHROPIC_BASE_URL"] {
            url(name, &mut settings.anthropic_url)?;
        }
        let mut instance = String::new();
        url("WINDLASS_SERVICENOW_URL", &mut instance)?;
        settings.servicenow_url = Some(instance).filter(|instance| !instance.is_empty());
        let hosts = |name: &str, listed: &[String]| -> Result<Vec<Host>, Error> {
            let own = env(name).unwrap_or_default();
            let all = own.split(',').filter(|text| !text.trim().is_empty());
            let all = all.chain(listed.iter().map(String::as_str));
            all.map(|text| Host::parse(text).map_err(|what| Error { place: name.to_owned(), what })).collect()
        };
        settings.allow = hosts("WINDLASS_HTTP_ALLOW", &config.http.allow)?;
        settings.allow_private = hosts("WINDLASS_HTTP_ALLOW_PRIVATE", &config.http.allow_private)?;
        let price = |price: &config::Price| Price { input: price.input_micros, output: price.output_micros };
        settings.prices =
            config.models.prices.iter().map(|(model, own)| (model.clone(), price(own))).collect();
        settings.model = config.models.provider.clone().zip(config.models.default.clone());
        settings.folder = env("WINDLASS_TOOLS").map(PathBuf::from).or_else(|| config.tools.clone());
        if let Some(text) = env("WINDLASS_PROBE_WAIT") {
            let wrong = || Error {
                place: "WINDLASS_PROBE_WAIT".to_owned(),
                what: format!("`{text}` is not a duration such as 10s"),
            };
            let span = span::parse(&text).map_err(|_| wrong())?;
            settings.probe_wait = Duration::from_millis(span.0);
        }
        Ok(settings)
    }
}

/// The address of a service, without the slash at its end.
fn base(text: &str) -> Result<String, String> {
    let url: reqwest::Url = text.parse().map_err(|_| format!("`{text}` is not an address"))?;
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
        return Err(format!("`{text}` is not an address such as https://example.com"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("an address holds no credentials; keep them as secrets".to_owned());
    }
    Ok(text.trim_end_matches('/').to_owned())
}

/// Whether an address is one of the public internet: not of this machine, a private network, a link, a cloud's own
/// services, a group, or reserved. An address that carries another one inside is what it carries.
#[must_use]
pub fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            let [a, b, c, _] = v4.octets();
            let shared = a == 100 && (64..128).contains(&b);
            let protocol = a == 192 && b == 0 && c == 0;
            let relay = a == 192 && b == 88 && c == 99;
            let bench = a == 198 && (18..20).contains(&b);
            !(v4.is_private()
                || v4.is_loopback()
                || v4.is_link_local()
                || v4.is_broadcast()
                || v4.is_documentation()
                || v4.is_multicast()
                || a == 0
                || a >= 240
                || shared
                || protocol
                || relay
                || bench)
        }
        IpAddr::V6(v6) => {
            if let Some(inner) = v6.to_ipv4_mapped() {
                return is_public(IpAddr::V4(inner));
            }
            let parts = v6.segments();
            let last = u32::from(parts[6]) << 16 | u32::from(parts[7]);
            let inner = std::net::Ipv4Addr::from(last);
            match parts {
                // Translated addresses, and those of tunnels.
                [0x64, 0xff9b, 0, 0, 0, 0, _, _] => is_public(IpAddr::V4(inner)),
                [0x2002, high, low, ..] => {
                    let inner = u32::from(high) << 16 | u32::from(low);
                    is_public(IpAddr::V4(std::net::Ipv4Addr::from(inner)))
                }
                // Only this eighth of all addresses is given out; in it, documentation, tunnels and tests are not.
                [first, second, ..] => {
                    let given_out = first & 0xe000 == 0x2000;
                    let special = first == 0x2001 && (second < 0x200 || second == 0xdb8) || first == 0x3fff;
                    given_out && !special
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Env;
    use std::path::Path;
    use std::sync::Arc;

    #[test]
    fn only_addresses_of_the_public_internet_are_public() {
        let public = ["1.1.1.1", "93.184.216.34", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"];
        let private = [
            "127.0.0.1",
            "10.1.2.3",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "0.0.0.0",
            "255.255.255.255",
            "224.0.0.1",
            "192.0.2.1",
            "198.18.0.1",
            "240.0.0.1",
            "::1",
            "::",
            "fe80::1",
            "fc00::1",
            "fd00:ec2::254",
            "ff02::1",
            "::ffff:127.0.0.1",
            "64:ff9b::7f00:1",
            "2002:7f00:1::",
            "2001:db8::1",
            "2001::1",
            "::7f00:1",
        ];
        for text in public {
            assert!(is_public(text.parse().unwrap()), "{text}");
        }
        for text in private {
            assert!(!is_public(text.parse().unwrap()), "{text}");
        }
    }

    #[test]
    fn a_host_is_listed_as_it_is_written_and_nothing_beside_it() {
        let list = |texts: &[&str]| texts.iter().map(|text| Host::parse(text).unwrap()).collect::<Vec<_>>();
        let settings =
            Settings { allow: list(&["api.example.com", "*.corp.example:8443"]), ..Settings::default() };
        for (host, port, allowed) in [
            ("api.example.com", 443, true),
            ("API.example.com.", 443, true),
            ("x.api.example.com", 443, false),
            ("evil-api.example.com", 443, false),
            ("a.corp.example", 8443, true),
            ("a.corp.example", 443, false),
            ("corp.example", 8443, false),
            ("evilcorp.example", 8443, false),
        ] {
            assert_eq!(settings.allows(host, port), allowed, "{host}:{port}");
        }
        assert!(Settings::default().allows("anything.example", 1));
        for bad in ["", "*.", "a b", "x:notaport", "http://a"] {
            assert!(Host::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_is_private_must_be_allowed_by_name() {
        let settings =
            Settings { allow_private: vec![Host::parse("127.0.0.1:8080").unwrap()], ..Settings::default() };
        assert!(settings.allows_private("127.0.0.1", 8080));
        assert!(!settings.allows_private("127.0.0.1", 22));
        assert!(!settings.allows_private("rebind.example", 8080));
    }

    #[test]
    fn settings_come_from_the_environment_and_the_file() {
        let env: Env = Arc::new(|name: &str| match name {
            "WINDLASS_GITHUB_API_URL" => Some("http://127.0.0.1:9/".to_owned()),
            "WINDLASS_HTTP_ALLOW" => Some("a.example, b.example".to_owned()),
            "WINDLASS_PROBE_WAIT" => Some("50ms".to_owned()),
            _ => None,
        });
        let text = "tenants: {}\nhttp: { allow: [c.example] }\nmodels: { prices: { m: { input_usd: 3, output_usd: 15 } } }\n";
        let config = config::parse(Path::new("windlass.yaml"), text).unwrap().with_env(env);
        let settings = Settings::of(&config).unwrap();
        assert_eq!(settings.github_url, "http://127.0.0.1:9");
        assert_eq!((settings.allow.len(), settings.probe_wait), (3, Duration::from_millis(50)));
        assert_eq!(settings.cost_micros("m", 1_000_000, 100_000), 3_000_000 + 1_500_000);
        assert_eq!(settings.cost_micros("other", 5, 5), 0);
        let wrong = |name: &'static str, value: &'static str| {
            let env: Env = Arc::new(move |asked: &str| (asked == name).then(|| value.to_owned()));
            Settings::of(&Config::default().with_env(env)).unwrap_err()
        };
        wrong("WINDLASS_SLACK_API_URL", "ftp://x");
        wrong("WINDLASS_SERVICENOW_URL", "https://user:pass@x");
        wrong("WINDLASS_PROBE_WAIT", "5");
    }
}
