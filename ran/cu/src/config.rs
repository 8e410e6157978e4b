//! The section `cu` of the configuration: its interfaces to DUs and UPFs, and its worker.

use pktio::interface::{Configured, Content, DpdkConfig, LinkConfig, WorkersConfig};
use serde::{Deserialize, Serialize};

/// A CU's user plane.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The links to DUs: one for all, or one for each, such as a memif.
    pub f1u: Vec<LinkConfig>,
    /// The link to UPFs. Without it the first one to DUs leads to UPFs as well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub n3: Option<LinkConfig>,
    /// The thread that forwards packets.
    #[serde(default)]
    pub workers: WorkersConfig,
    /// Start options of DPDK.
    #[serde(default)]
    pub dpdk: DpdkConfig,
}

/// A link with its place in the configuration.
pub(crate) struct Link<'a> {
    /// "f1u" or "n3".
    pub(crate) point: &'static str,
    /// Its name, unique within the section.
    pub(crate) name: String,
    pub(crate) config: &'a LinkConfig,
}

impl Config {
    /// A CU with these links and a worker with the usual settings.
    pub fn new(f1u: Vec<LinkConfig>, n3: Option<LinkConfig>) -> Config {
        Config { f1u, n3, workers: WorkersConfig::default(), dpdk: DpdkConfig::default() }
    }

    /// Its links. Their positions are the numbers of its interfaces.
    pub(crate) fn links(&self) -> Vec<Link<'_>> {
        let name = |number: usize| if number == 0 { "f1u".to_owned() } else { format!("f1u[{number}]") };
        let f1u = self.f1u.iter().enumerate();
        let f1u = f1u.map(|(number, config)| Link { point: "f1u", name: name(number), config });
        let n3 = self.n3.iter().map(|config| Link { point: "n3", name: "n3".to_owned(), config });
        f1u.chain(n3).collect()
    }

    /// Checks the section. The error is text for a person.
    ///
    /// # Errors
    /// What is wrong, and what to do.
    pub fn check(&self) -> Result<(), String> {
        if self.f1u.is_empty() {
            return Err("f1u needs a link: without one no DU can reach this CU".to_owned());
        }
        if self.workers.count.is_some_and(|count| count > 1) {
            return Err("workers: a CU has one worker; leave count out".to_owned());
        }
        self.workers.check().map_err(|error| format!("workers: {error}"))?;
        let links = self.links();
        let mut before: Vec<Configured<'_>> = Vec::new();
        for link in &links {
            link.config
                .check("the link", Content::Tunnels)
                .map_err(|error| format!("{}: {error}", link.name))?;
            let own = Configured { name: &link.name, content: Content::Tunnels, link: link.config };
            own.check_beside(&before).map_err(|error| format!("{}: {error}", link.name))?;
            before.push(own);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config, String> {
        let config: Config = serde_json::from_str(text).map_err(|error| error.to_string())?;
        config.check().map(|()| config)
    }

    #[test]
    fn the_three_models_are_configurations() {
        let memif = |number: u8| {
            format!(
                r#"{{"gtpu": "10.0.{number}.1:2152", "backend": "memif", "addresses": ["10.0.{number}.1/24"],
                    "device": "memif{number},role=server,socket=/run/godwit/du{number}.sock", "mtu": 1600}}"#
            )
        };
        let kernel = r#"{"gtpu": "10.0.9.1:2152"}"#;
        for text in [
            format!(r#"{{"f1u": [{kernel}], "n3": {{"gtpu": "10.0.8.1:2152"}}}}"#),
            format!(r#"{{"f1u": [{}], "n3": {kernel}}}"#, memif(1)),
            format!(r#"{{"f1u": [{}, {}], "n3": {}}}"#, memif(1), memif(2), memif(3)),
            format!(r#"{{"f1u": [{kernel}], "workers": {{"cores": [0], "poll_us": 0}}}}"#),
        ] {
            let config = parse(&text).unwrap();
            let again = serde_json::from_value(serde_json::to_value(&config).unwrap()).unwrap();
            assert_eq!(config, again);
        }
        let both = parse(&format!(r#"{{"f1u": [{}, {}], "n3": {kernel}}}"#, memif(1), memif(2))).unwrap();
        let names: Vec<String> = both.links().into_iter().map(|link| link.name).collect();
        assert_eq!(names, ["f1u", "f1u[1]", "n3"]);
    }

    #[test]
    fn what_cannot_be_is_refused_with_what_to_do() {
        for (text, said) in [
            (r#"{"f1u": []}"#, "f1u needs a link"),
            (r#"{"n3": {"gtpu": "10.0.0.1:2152"}}"#, "missing field `f1u`"),
            (r#"{"f1u": [{"backend": "kernel"}]}"#, "f1u: the link needs `gtpu:"),
            (r#"{"f1u": [{"gtpu": "10.0.0.1:2152", "backend": "af_xdp"}]}"#, "f1u"),
            (r#"{"f1u": [{"gtpu": "10.0.0.1:2152"}], "workers": {"count": 2}}"#, "one worker"),
            (r#"{"f1u": [{"gtpu": "10.0.0.1:2152"}], "n4": {}}"#, "unknown field `n4`"),
            (r#"{"f1u": [{"gtpu": "10.0.0.1:2152", "backend": "netmap"}]}"#, "netmap"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}
