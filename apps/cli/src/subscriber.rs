//! `godwit subscriber …`: manages subscribers. Works on the store directly, with or without a running
//! core. A running core notices changes by itself (docs/spec/ts29503.md).

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::Subcommand;
use serde::Serialize;
use store::{
    Authentication, DnnSubscription, KeySource, OnConflict, OperatorCode, SliceSubscription, Sqlite,
    Store as _, Subscriber,
};
use types::{Ambr, BitRate, Dnn, Imsi, Key, PduSessionType, SNssai, Supi};

use crate::config;
use crate::{ConfigArg, EXIT_FAILED};
use output::{self, Format, Table};

/// Subscribers read from the store at a time.
const PAGE: usize = 1000;

/// Options of `godwit subscriber`.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Args, Debug)]
struct StoreArg {
    #[command(flatten)]
    config: ConfigArg,
    /// The SQLite file; the configuration is not read then.
    #[arg(long, value_name = "FILE")]
    store: Option<PathBuf>,
    /// File of the key that encrypts the subscribers' keys in the store given by --store. A systemd
    /// credential `store.key` takes precedence.
    #[arg(long, value_name = "FILE", default_value = config::STORE_KEY, requires = "store")]
    store_key: PathBuf,
}

#[derive(Subcommand, Debug)]
enum Verb {
    /// Add a subscriber, or many with consecutive IMSIs and the same keys (for tests).
    Add(Box<AddArgs>),
    /// List subscribers.
    List {
        #[command(flatten)]
        store: StoreArg,
        #[command(flatten)]
        format: Format,
    },
    /// Show one subscriber; its keys only with --json, in the form that import reads.
    Show {
        #[command(flatten)]
        store: StoreArg,
        #[command(flatten)]
        format: Format,
        /// IMSI, with or without `imsi-`.
        imsi: String,
    },
    /// Remove subscribers. Their UEs are deregistered by a running core, idle ones after paging.
    Remove {
        #[command(flatten)]
        store: StoreArg,
        /// IMSIs, with or without `imsi-`.
        #[arg(required = true)]
        imsi: Vec<String>,
    },
    /// Add the subscribers of a CSV or JSON file, all or none.
    ///
    /// CSV: a header line names the columns; imsi, k and opc (or op) must be there; amf, sqn, msisdn, snssai, dnn,
    /// ambr_uplink and ambr_downlink may. JSON: a list of what `subscriber show --json` prints.
    Import {
        #[command(flatten)]
        store: StoreArg,
        /// Overwrite subscribers that exist.
        #[arg(long)]
        replace: bool,
        /// The file, or - for standard input.
        file: PathBuf,
    },
    /// Encrypt the subscribers' keys with another key, for example when the old one may be known to others.
    ///
    /// Afterwards set `store_key` in the configuration to the new file, or load it as the systemd
    /// credential `store.key`, and restart the core. Until then the core cannot read the store any
    /// more. If the command was interrupted, run it again.
    ChangeKey {
        #[command(flatten)]
        store: StoreArg,
        /// File of the new key; created with mode 0600 if missing.
        new_key: PathBuf,
    },
}

#[derive(clap::Args, Debug)]
struct AddArgs {
    #[command(flatten)]
    store: StoreArg,
    /// IMSI: 15 digits, MCC and MNC first.
    imsi: String,
    /// Permanent key K of the USIM, 32 hexadecimal digits.
    #[arg(long, value_name = "HEX")]
    k: Key<16>,
    /// Operator code derived for this USIM.
    #[arg(long, value_name = "HEX", required_unless_present = "op", conflicts_with = "op")]
    opc: Option<Key<16>>,
    /// Operator code of the operator, instead of --opc.
    #[arg(long, value_name = "HEX")]
    op: Option<Key<16>>,
    /// Authentication management field.
    #[arg(long, value_name = "HEX", default_value = "8000")]
    amf: Key<2>,
    /// Sequence number to start from.
    #[arg(long, default_value_t = 0)]
    sqn: u64,
    /// Slices, as `1` or `1-010203`; the first is the default.
    #[arg(long, value_name = "SST[-SD]", default_value = "1")]
    snssai: Vec<SNssai>,
    /// Data networks, in every slice; the first is the default.
    #[arg(long, value_name = "NAME", default_value = "internet")]
    dnn: Vec<Dnn>,
    /// Session types allowed; the first is the default.
    #[arg(long, value_name = "TYPE", value_delimiter = ',', default_value = "IPV4,IPV6,IPV4V6")]
    session_type: Vec<PduSessionType>,
    /// Aggregate bit rate towards the network, of the UE and of each session.
    #[arg(long, value_name = "RATE", default_value = "1 Gbps")]
    ambr_uplink: BitRate,
    /// Aggregate bit rate towards the UE.
    #[arg(long, value_name = "RATE", default_value = "1 Gbps")]
    ambr_downlink: BitRate,
    /// Number of subscribers, with consecutive IMSIs.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    count: u64,
    /// Overwrite existing subscribers. A running core tells registered UEs of changed slices and bit
    /// rates; sessions stay as they are.
    #[arg(long)]
    replace: bool,
}

/// Runs the command.
///
/// # Errors
/// The store cannot be opened, or refuses the change.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        match args.verb {
            Verb::Add(add) => self::add(*add).await,
            Verb::List { store, format } => list(&store.open_existing()?, format).await,
            Verb::Show { store, format, imsi } => show(&store.open_existing()?, format, &imsi).await,
            Verb::Remove { store, imsi } => remove(&store.open_existing()?, &imsi).await,
            Verb::Import { store, replace, file } => import(&store.open()?, replace, &file).await,
            Verb::ChangeKey { store, new_key } => change_key(&store, new_key),
        }
    })
}

impl StoreArg {
    /// Paths of the store and its key.
    fn places(&self) -> anyhow::Result<(PathBuf, KeySource)> {
        let (store, key) = match &self.store {
            Some(store) => (store.clone(), self.store_key.clone()),
            None => {
                let config = config::load(&self.config.config)?;
                (config.store, config.store_key)
            }
        };
        Ok((store, KeySource::find(&key)))
    }

    /// Opens the store. Creates it, and its key, if missing.
    fn open(&self) -> anyhow::Result<Sqlite> {
        let (store, key) = self.places()?;
        Ok(Sqlite::open(&store, &key)?)
    }

    /// Opens the store, for commands that make no sense without one.
    fn open_existing(&self) -> anyhow::Result<Sqlite> {
        let (store, key) = self.places()?;
        Ok(Sqlite::open_existing(&store, &key)?)
    }
}

fn change_key(store: &StoreArg, new_key: PathBuf) -> anyhow::Result<ExitCode> {
    let (path, old) = store.places()?;
    let new_key = std::path::absolute(new_key)?;
    Sqlite::change_key(&path, &old, &KeySource::File(new_key.clone()))?;
    let (new, old) = (new_key.display(), old.path().display());
    output::text(&format!(
        "the keys in {} are encrypted with {new} now.\nWrite `store_key: {new}` into the configuration (or load it as \
         the credential `store.key`), restart the core, back {new} up, and keep {old} only as long as its backups.\n",
        path.display()
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// An IMSI with or without `imsi-`.
fn parse_supi(text: &str) -> anyhow::Result<Supi> {
    let imsi: Imsi = text.strip_prefix("imsi-").unwrap_or(text).parse()?;
    Ok(Supi(imsi))
}

fn conflict(replace: bool) -> OnConflict {
    if replace { OnConflict::Replace } else { OnConflict::Fail }
}

async fn add(args: AddArgs) -> anyhow::Result<ExitCode> {
    let first = parse_supi(&args.imsi)?;
    let operator_code = match (args.opc, args.op) {
        (Some(opc), _) => OperatorCode::Opc(opc),
        (None, Some(op)) => OperatorCode::Op(op),
        (None, None) => bail!("give --opc or --op"),
    };
    let authentication = Authentication { k: args.k, operator_code, amf: args.amf, sqn: args.sqn };
    let ambr = Ambr { uplink: args.ambr_uplink, downlink: args.ambr_downlink };
    let dnns: Vec<DnnSubscription> = args
        .dnn
        .into_iter()
        .map(|dnn| DnnSubscription {
            ambr,
            session_types: args.session_type.clone(),
            ..DnnSubscription::new(dnn)
        })
        .collect();
    let slices: Vec<SliceSubscription> = (args.snssai.into_iter().enumerate())
        .map(|(index, snssai)| SliceSubscription { snssai, default: index == 0, dnns: dnns.clone() })
        .collect();
    let mut subscribers = Vec::new();
    for offset in 0..args.count {
        let imsi =
            first.imsi().checked_add(offset).context("the IMSIs would exceed 15 digits; lower --count")?;
        let mut subscriber = Subscriber::new(Supi(imsi), authentication.clone());
        subscriber.ue_ambr = ambr;
        subscriber.slices = slices.clone();
        subscriber.validate().map_err(anyhow::Error::msg)?;
        subscribers.push(subscriber);
    }
    args.store.open()?.put_subscribers(subscribers, conflict(args.replace)).await?;
    output::text(&format!("{} subscriber(s) added\n", args.count))?;
    Ok(ExitCode::SUCCESS)
}

/// A subscriber in a listing: everything but keys.
#[derive(Serialize)]
struct Listed {
    supi: Supi,
    msisdn: Option<String>,
    slices: Vec<String>,
    dnns: Vec<String>,
    ue_ambr: Ambr,
}

impl From<&Subscriber> for Listed {
    fn from(subscriber: &Subscriber) -> Self {
        let mut dnns: Vec<String> =
            subscriber.slices.iter().flat_map(|slice| &slice.dnns).map(|dnn| dnn.dnn.to_string()).collect();
        dnns.dedup();
        Listed {
            supi: subscriber.supi,
            msisdn: subscriber.msisdn.clone(),
            slices: subscriber.slices.iter().map(|slice| slice.snssai.to_string()).collect(),
            dnns,
            ue_ambr: subscriber.ue_ambr,
        }
    }
}

async fn list(store: &Sqlite, format: Format) -> anyhow::Result<ExitCode> {
    let mut listed: Vec<Listed> = Vec::new();
    let mut after = None;
    loop {
        let page = store.subscribers(after, PAGE).await?;
        let Some(last) = page.last() else { break };
        after = Some(last.supi);
        listed.extend(page.iter().map(Listed::from));
    }
    let mut table = Table::new(&["SUPI", "MSISDN", "SLICES", "DNNS", "AMBR UP", "AMBR DOWN"]);
    for one in &listed {
        table.row([
            one.supi.to_string(),
            one.msisdn.clone().unwrap_or_default(),
            one.slices.join(" "),
            one.dnns.join(" "),
            one.ue_ambr.uplink.to_string(),
            one.ue_ambr.downlink.to_string(),
        ]);
    }
    output::listing(format, &listed, &table, "no subscribers; add one with `godwit subscriber add`")?;
    Ok(ExitCode::SUCCESS)
}

async fn show(store: &Sqlite, format: Format, imsi: &str) -> anyhow::Result<ExitCode> {
    let supi = parse_supi(imsi)?;
    let Some(subscriber) = store.subscriber(supi).await? else {
        bail!("{supi} is not a subscriber; `godwit subscriber list` shows who is");
    };
    if format.json {
        output::json(&subscriber)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new(&["SLICE", "DNN", "TYPES", "5QI", "AMBR UP", "AMBR DOWN", "ADDRESS"]);
    for slice in &subscriber.slices {
        for dnn in &slice.dnns {
            let types: Vec<String> = dnn.session_types.iter().map(ToString::to_string).collect();
            table.row([
                slice.snssai.to_string(),
                dnn.dnn.to_string(),
                types.join(","),
                dnn.five_qi.0.to_string(),
                dnn.ambr.uplink.to_string(),
                dnn.ambr.downlink.to_string(),
                dnn.static_ipv4.map(|address| address.to_string()).unwrap_or_default(),
            ]);
        }
    }
    let sqn = subscriber.authentication.sqn;
    output::text(&format!("{supi}, SQN {sqn:012x}, keys hidden (--json shows them)\n{}", table.render()))?;
    Ok(ExitCode::SUCCESS)
}

async fn remove(store: &Sqlite, imsis: &[String]) -> anyhow::Result<ExitCode> {
    let mut code = ExitCode::SUCCESS;
    for imsi in imsis {
        let supi = parse_supi(imsi)?;
        if store.remove_subscriber(supi).await? {
            output::text(&format!("{supi} removed\n"))?;
        } else {
            output::text(&format!("{supi} is not a subscriber\n"))?;
            code = ExitCode::from(EXIT_FAILED);
        }
    }
    Ok(code)
}

async fn import(store: &Sqlite, replace: bool, file: &std::path::Path) -> anyhow::Result<ExitCode> {
    let text = if file.as_os_str() == "-" {
        std::io::read_to_string(std::io::stdin())?
    } else {
        std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?
    };
    let subscribers = store::import::parse(&text)
        .map_err(|error| anyhow::anyhow!("{}: {error}; nothing was added", file.display()))?;
    let count = subscribers.len();
    store.put_subscribers(subscribers, conflict(replace)).await?;
    output::text(&format!("{count} subscriber(s) imported\n"))?;
    Ok(ExitCode::SUCCESS)
}
