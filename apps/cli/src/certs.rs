//! `godwit certs`: an authority of one's own, and a certificate for every network function of a configuration.
//!
//! What is there stays, so the command may be repeated. The authority is never replaced; certificates are, with `--renew`.

use std::{
    io,
    net::SocketAddr,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context as _, ensure};
use net::private_file;
use nf::certificate::{AUTHORITY, CertificateFiles, expires_soon};
use rcgen::{
    BasicConstraints, CertificateParams, CustomExtension, DistinguishedName, DnType, ExtendedKeyUsagePurpose,
    IsCa, Issuer, KeyPair, KeyUsagePurpose, SanType,
};
use sbi::model::{common::DateTime, nrf::NfType};

use crate::{
    ConfigArg, EXIT_FAILED,
    config::{self, Config},
};

/// Options of `godwit certs`.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Network functions speak TLS wherever their `sbi` address is not a loopback address. Each then needs three files in the \
folder `sbi.trust`: ca.pem, and its own certificate and key, such as amf.pem and amf.key. This command makes all of them \
from the addresses in the configuration; what is there already stays. Run it as the user that runs the core.

NFs on several machines: write all their addresses into one configuration, run this once, and copy ca.pem with each NF's \
two files to its machine, with mode 0600. ca.key stays where it is: it is needed only to make more certificates.

Certificates of an authority of your own: put them into the folder under these names; see docs/spec/ts33501-sbi.md.")]
pub struct Args {
    #[command(flatten)]
    config: ConfigArg,
    /// Folder for the files; `sbi.trust` of the configuration when not given.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Replace the certificates and keys of the network functions. The authority stays. Running NFs take them in seconds.
    #[arg(long)]
    renew: bool,
    /// Years for which new certificates are valid.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=20))]
    years: u32,
}

const AUTHORITY_KEY: &str = "ca.key";
/// As long as the longest certificate, and as long again.
const AUTHORITY_YEARS: u32 = 40;
const YEAR: Duration = Duration::from_secs(31_556_952);
/// Clocks differ.
const VALID_BEFORE: Duration = Duration::from_secs(86_400);
/// Extension that lists the NF types of a certificate (RFC 9310 §3).
const NF_TYPES: &[u64] = &[1, 3, 6, 1, 5, 5, 7, 1, 34];

/// Makes what is missing, and says what it made and what to write into the configuration.
///
/// # Errors
/// The configuration is wrong, files cannot be read or made, or the authority's key is needed and not there.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let config = config::load(&args.config.config)?;
    let all_fit = make_all(args, &config, &mut io::stdout().lock())?;
    Ok(if all_fit { ExitCode::SUCCESS } else { ExitCode::from(EXIT_FAILED) })
}

/// The same, with what it says going to `out`; `false` when a file that is there does not fit and was left.
fn make_all(args: &Args, config: &Config, out: &mut impl io::Write) -> anyhow::Result<bool> {
    let folder = args.out.as_ref().unwrap_or(&config.sbi.trust);
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
        .with_context(|| format!("cannot create {}", folder.display()))?;
    writeln!(out, "{}:", folder.display())?;
    if !folder.join(AUTHORITY).exists() {
        make_authority(folder)?;
        writeln!(
            out,
            "  made  {AUTHORITY}, {AUTHORITY_KEY}: the authority; nobody but you needs {AUTHORITY_KEY}"
        )?;
    } else {
        writeln!(out, "  kept  {AUTHORITY}: the authority")?;
    }
    let mut all_fit = true;
    for (nf_type, address) in network_functions(config) {
        let files = CertificateFiles::of(folder, &nf_type, Some(address));
        let [name, key_name] = [files.certificate(), files.key()]
            .map(|path| path.file_name().unwrap_or_default().to_string_lossy().into_owned());
        let exists = files.certificate().exists() || files.key().exists();
        if args.renew || !exists {
            let issuer = issuer(folder)?;
            make(config, &nf_type, address, args.years, &issuer, &files)?;
            let tls = files.load().with_context(|| {
                format!("{AUTHORITY} was not made by `godwit certs`: let its owner sign the certificates")
            })?;
            let until = DateTime::from(tls.expires()).0;
            writeln!(out, "  made  {name}, {key_name}: {nf_type} at {}, until {until}", address.ip())?;
            continue;
        }
        match files.load() {
            Ok(tls) => {
                let until = DateTime::from(tls.expires()).0;
                let advice = if expires_soon(tls.expires()) { "; replace it with --renew" } else { "" };
                writeln!(out, "  kept  {name}: {nf_type} at {}, until {until}{advice}", address.ip())?;
            }
            Err(error) => {
                all_fit = false;
                writeln!(out, "  WRONG {name}: {error}; replace it with --renew")?;
            }
        }
    }
    advise(out, args, config, folder)?;
    Ok(all_fit)
}

/// What to write into the configuration so that the files are used.
fn advise(out: &mut impl io::Write, args: &Args, config: &Config, folder: &Path) -> io::Result<()> {
    let file = args.config.config.display();
    if *folder != config.sbi.trust {
        let folder = std::path::absolute(folder)?;
        writeln!(out, "write into {file}:\n  sbi:\n    trust: {}", folder.display())?;
    }
    let served = network_functions(config).into_iter().filter(|(_, at)| config.sbi.tls.applies(*at));
    let names: Vec<_> = served.map(|(nf_type, _)| nf_type.as_str().to_lowercase()).collect();
    if config.sbi.tls == nf::security::TlsMode::Off {
        writeln!(out, "TLS is switched off: remove `sbi.tls: off` from {file}")
    } else if names.is_empty() {
        writeln!(
            out,
            "nothing needs them yet: every `sbi` address in {file} is a loopback address. Change these, or write\n  \
             sbi:\n    tls: required"
        )
    } else {
        writeln!(out, "TLS is served by {}; there is nothing to change in {file}", names.join(", "))
    }
}

/// The NFs with a service-based interface.
pub(crate) fn network_functions(config: &Config) -> [(NfType, SocketAddr); 7] {
    [
        (NfType::Nrf, config.nrf.sbi),
        (NfType::Udr, config.udr.sbi),
        (NfType::Udm, config.udm.sbi),
        (NfType::Ausf, config.ausf.sbi),
        (NfType::Pcf, config.pcf.sbi),
        (NfType::Smf, config.smf.sbi),
        (NfType::Amf, config.amf.sbi),
    ]
}

/// Makes the authority where there is none.
fn make_authority(folder: &Path) -> anyhow::Result<()> {
    let (path, key_path) = (folder.join(AUTHORITY), folder.join(AUTHORITY_KEY));
    ensure!(
        !key_path.exists(),
        "{} is there, but not its certificate {}: copy that here, too, or remove the key for a new authority",
        key_path.display(),
        path.display()
    );
    let key = KeyPair::generate()?;
    create(&key_path, &key.serialize_pem())?;
    create(&path, &authority().self_signed(&key)?.pem())
}

/// The authority's name and key, to sign with.
fn issuer(folder: &Path) -> anyhow::Result<Issuer<'static, KeyPair>> {
    let path = folder.join(AUTHORITY_KEY);
    let text = private_file::read(&path)
        .context("certificates are made where the key of their authority is; copy them from there")?;
    let key = KeyPair::from_pem(&text).with_context(|| format!("{} is no key", path.display()))?;
    Ok(Issuer::new(authority(), key))
}

/// The authority. Always the same but for its key and dates, so that its key is enough to sign more.
fn authority() -> CertificateParams {
    let mut params = valid_for(AUTHORITY_YEARS);
    params.distinguished_name.push(DnType::CommonName, "Godwit SBI authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

/// Makes certificate and key of an NF, in place of those there.
fn make(
    config: &Config,
    nf_type: &NfType,
    address: SocketAddr,
    years: u32,
    issuer: &Issuer<'_, KeyPair>,
    files: &CertificateFiles,
) -> anyhow::Result<()> {
    let key = KeyPair::generate()?;
    let signed = certificate(config, nf_type, address, years)?.signed_by(&key, issuer)?;
    replace(files.key(), &key.serialize_pem())?;
    replace(files.certificate(), &signed.pem())
}

/// The certificate of an NF (TS 33.310 §6.1.3c): its address, domain name and instance as alternative names.
fn certificate(
    config: &Config,
    nf_type: &NfType,
    address: SocketAddr,
    years: u32,
) -> anyhow::Result<CertificateParams> {
    let (mcc, mnc) = (config.plmn.mcc().to_string(), config.plmn.mnc().to_string());
    // TS 23.003 §28.2: the MNC always has three digits here.
    let domain = format!("{}.5gc.mnc{mnc:0>3}.mcc{mcc}.3gppnetwork.org", nf_type.as_str().to_lowercase());
    let id = nf::instance::instance_id(nf_type, address);
    let mut params = valid_for(years);
    params.distinguished_name.push(DnType::CommonName, domain.as_str());
    params.subject_alt_names = vec![
        SanType::IpAddress(address.ip()),
        SanType::DnsName(domain.as_str().try_into()?),
        SanType::URI(format!("urn:uuid:{id}").as_str().try_into()?),
    ];
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    // SEQUENCE OF IA5String with one element; names of NF types are short.
    let name = nf_type.as_str().as_bytes();
    let element = [&[0x16, name.len() as u8], name].concat();
    let content = [&[0x30, element.len() as u8], element.as_slice()].concat();
    params.custom_extensions = vec![CustomExtension::from_oid_content(NF_TYPES, content)];
    Ok(params)
}

/// A certificate without name, valid from now on.
fn valid_for(years: u32) -> CertificateParams {
    let now = net::time::wall_clock();
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.not_before = (now - VALID_BEFORE).into();
    params.not_after = (now + YEAR * years).into();
    params
}

fn create(path: &Path, text: &str) -> anyhow::Result<()> {
    private_file::create(path, text).with_context(|| format!("cannot create {}", path.display()))
}

/// Writes a file whole, in place of the one there.
fn replace(path: &Path, text: &str) -> anyhow::Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let new = path.with_file_name(format!(".{name}.new"));
    // One that a killed process left.
    let _ = std::fs::remove_file(&new);
    create(&new, text)?;
    std::fs::rename(&new, path).with_context(|| format!("cannot replace {}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, os::unix::fs::PermissionsExt as _};

    use nf::{TrustError, certificate::Certificate};

    use super::*;

    fn args(renew: bool) -> Args {
        let config = ConfigArg { config: PathBuf::from("godwit.yaml") };
        Args { config, out: None, renew, years: 1 }
    }

    /// The shipped configuration with its keys in `folder` and changed text.
    fn config(folder: &Path, from: &str, to: &str) -> Config {
        let shipped = include_str!("../../../godwit.yaml");
        assert!(shipped.contains(from));
        let trust = folder.to_string_lossy();
        config::parse(&shipped.replace("/var/lib/godwit/trust", &trust).replace(from, to)).unwrap()
    }

    fn said(args: &Args, config: &Config) -> (bool, String) {
        let mut out = Vec::new();
        let all_fit = make_all(args, config, &mut out).unwrap();
        (all_fit, String::from_utf8(out).unwrap())
    }

    /// Names, modes and contents of the files in a folder.
    fn files(folder: &Path) -> BTreeMap<String, (u32, String)> {
        let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let file = |path: PathBuf| {
            let mode = path.metadata().unwrap().permissions().mode() & 0o777;
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            (name, (mode, std::fs::read_to_string(path).unwrap()))
        };
        entries.map(file).collect()
    }

    fn opened(folder: &Path, config: &Config) -> Result<Certificate, TrustError> {
        Certificate::open(CertificateFiles::of(folder, &NfType::Amf, Some(config.amf.sbi)))
    }

    #[test]
    fn what_is_there_stays() {
        let folder = tempfile::tempdir().unwrap();
        let trust = folder.path().join("deep/trust");
        let config = config(&trust, "sbi: 127.0.0.5:7777", "sbi: 10.0.0.5:7777");
        let (_, first) = said(&args(false), &config);
        let made = files(&trust);
        assert_eq!(made.len(), 2 + 2 * 7, "{:?}", made.keys());
        assert!(made.values().all(|(mode, _)| *mode == 0o600));
        assert_eq!(trust.metadata().unwrap().permissions().mode() & 0o777, 0o700);
        assert!(
            first.contains("made  ca.pem, ca.key")
                && first.contains("made  amf.pem, amf.key: AMF at 10.0.0.5, until 20")
        );
        assert!(first.contains("TLS is served by amf;"), "{first}");
        for (nf_type, address) in network_functions(&config) {
            let tls = CertificateFiles::of(&trust, &nf_type, Some(address)).load().unwrap();
            assert_eq!(tls.instance(), nf::instance::instance_id(&nf_type, address));
        }
        let (all_fit, second) = said(&args(false), &config);
        assert!(all_fit && second.contains("kept  ca.pem") && second.contains("kept  amf.pem"), "{second}");
        assert!(!second.contains("made"), "{second}");
        assert_eq!(files(&trust), made);
        // A file that went missing comes back; the others stay.
        std::fs::remove_file(trust.join("udm.key")).unwrap();
        let (all_fit, half) = said(&args(false), &config);
        assert!(!all_fit && half.contains("WRONG udm.pem"), "{half}");
        std::fs::remove_file(trust.join("udm.pem")).unwrap();
        let (all_fit, again) = said(&args(false), &config);
        assert!(all_fit && again.contains("made  udm.pem") && again.contains("kept  udr.pem"), "{again}");
    }

    #[test]
    fn a_certificate_for_another_address_is_replaced_on_request_only() {
        let folder = tempfile::tempdir().unwrap();
        let trust = folder.path();
        let before = config(trust, "sbi: 127.0.0.5:7777", "sbi: 10.0.0.5:7777");
        said(&args(false), &before);
        let made = files(trust);
        let after = config(trust, "sbi: 127.0.0.5:7777", "sbi: 10.0.0.6:7777");
        let error = opened(trust, &after).unwrap_err().to_string();
        assert!(error.contains("does not name 10.0.0.6") && error.contains("--renew"), "{error}");
        let (all_fit, left) = said(&args(false), &after);
        assert!(!all_fit && left.contains("WRONG amf.pem") && left.contains("--renew"), "{left}");
        assert_eq!(files(trust), made);
        let (all_fit, renewed) = said(&args(true), &after);
        assert!(all_fit && renewed.contains("made  amf.pem, amf.key: AMF at 10.0.0.6"), "{renewed}");
        let now = files(trust);
        assert!(now["ca.pem"] == made["ca.pem"] && now["ca.key"] == made["ca.key"]);
        assert!(now["amf.pem"] != made["amf.pem"] && now["amf.key"] != made["amf.key"]);
        opened(trust, &after).unwrap();
    }

    #[test]
    fn an_authority_without_its_key_signs_nothing_and_stays() {
        let folder = tempfile::tempdir().unwrap();
        let trust = folder.path();
        let config = config(trust, "log: info", "log: info");
        said(&args(false), &config);
        for (missing, names) in [("ca.key", "ca.key"), ("ca.pem", "not its certificate")] {
            let kept = std::fs::read_to_string(trust.join(missing)).unwrap();
            std::fs::remove_file(trust.join(missing)).unwrap();
            let before = files(trust);
            let error = make_all(&args(true), &config, &mut Vec::new()).unwrap_err();
            assert!(format!("{error:#}").contains(names), "{error:#}");
            assert_eq!(files(trust), before);
            private_file::create(&trust.join(missing), &kept).unwrap();
        }
        // One of another authority under this name: the certificates would be of no use.
        let elsewhere = tempfile::tempdir().unwrap();
        said(&Args { out: Some(elsewhere.path().to_owned()), ..args(false) }, &config);
        std::fs::copy(elsewhere.path().join("ca.pem"), trust.join("ca.pem")).unwrap();
        assert!(make_all(&args(true), &config, &mut Vec::new()).is_err());
    }

    #[test]
    fn what_to_write_into_the_configuration_is_said() {
        let folder = tempfile::tempdir().unwrap();
        let trust = folder.path().join("trust");
        let loopback = config(&trust, "log: info", "log: info");
        let (_, text) = said(&args(false), &loopback);
        assert!(text.contains("nothing needs them yet") && text.contains("tls: required"), "{text}");
        let off = config(&trust, "tls: auto", "tls: off");
        assert!(said(&args(false), &off).1.contains("remove `sbi.tls: off`"));
        let elsewhere = folder.path().join("other");
        let (_, text) = said(&Args { out: Some(elsewhere.clone()), ..args(false) }, &loopback);
        assert!(text.contains(&format!("sbi:\n    trust: {}", elsewhere.display())), "{text}");
    }

    #[test]
    fn a_running_nf_takes_a_renewed_certificate_and_no_broken_one() {
        let folder = tempfile::tempdir().unwrap();
        let trust = folder.path();
        let config = config(trust, "sbi: 127.0.0.5:7777", "sbi: 10.0.0.5:7777");
        said(&args(false), &config);
        let mut certificate = opened(trust, &config).unwrap();
        let (tls, instance) = (certificate.tls(), certificate.instance());
        let expires = tls.expires();
        assert!(!certificate.refresh().unwrap());
        said(&Args { years: 2, ..args(true) }, &config);
        assert!(certificate.refresh().unwrap());
        let renewed = tls.expires();
        assert!(renewed > expires && tls.instance() == instance, "what clients and servers hold has changed");
        // A half-written one is said once, and the last good one stays.
        replace(&trust.join("amf.pem"), "half").unwrap();
        assert!(certificate.refresh().unwrap_err().to_string().contains("amf.pem"));
        assert!(!certificate.refresh().unwrap());
        assert_eq!(tls.expires(), renewed);
        // So does one of another instance: the NRF and its peers know this one.
        std::fs::remove_file(trust.join("amf.pem")).unwrap();
        std::fs::remove_file(trust.join("amf.key")).unwrap();
        let moved = self::config(trust, "sbi: 127.0.0.5:7777", "sbi: 10.0.0.5:7778");
        said(&args(false), &moved);
        assert!(certificate.refresh().unwrap_err().to_string().contains("another NF instance"));
        assert_eq!((tls.expires(), tls.instance()), (renewed, instance));
    }
}
