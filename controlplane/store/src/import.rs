//! Bulk import of subscribers from CSV or JSON, with errors that name the line.
//!
//! CSV: a header line names the columns, in any order. `imsi`, `k` and one of `opc`, `op` are required;
//! `amf`, `sqn`, `msisdn`, `snssai` (`1-000001`), `dnn`, `session_type`, `ambr_uplink` and
//! `ambr_downlink` (`1 Gbps`) are optional. JSON: a document as `subscriber show --json` prints it, or
//! an array of them.

use types::{Ambr, Imsi, Key, Supi};

use crate::{Authentication, DnnSubscription, OperatorCode, SliceSubscription, Subscriber};

/// Most subscribers in one import, which bounds memory (about 1 KB each).
const IMPORT_MAX: usize = 1_000_000;

/// A file that cannot be imported; nothing of it was stored.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct ImportError {
    /// Line in the file, from 1.
    pub line: u64,
    /// What is wrong there; never contains a key.
    pub problem: String,
}

const COLUMNS: [&str; 11] =
    ["imsi", "k", "opc", "op", "amf", "sqn", "msisdn", "snssai", "dnn", "ambr_uplink", "ambr_downlink"];

/// Reads subscribers from `text`: JSON when it begins with `[` or `{`, CSV otherwise.
///
/// # Errors
/// The first wrong line and its mistake.
pub fn parse(text: &str) -> Result<Vec<Subscriber>, ImportError> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let json = text.trim_start().starts_with(['[', '{']);
    let subscribers = if json { parse_json(text)? } else { parse_csv(text)? };
    let mut seen = std::collections::HashMap::with_capacity(subscribers.len());
    for (line, subscriber) in &subscribers {
        let problem = match subscriber.validate() {
            Err(problem) => problem,
            Ok(()) => match seen.insert(subscriber.supi, *line) {
                Some(first) => format!("{} stands on line {first} already", subscriber.supi),
                None => continue,
            },
        };
        return Err(ImportError { line: *line, problem });
    }
    Ok(subscribers.into_iter().map(|(_, subscriber)| subscriber).collect())
}

fn parse_json(text: &str) -> Result<Vec<(u64, Subscriber)>, ImportError> {
    let parsed = if text.trim_start().starts_with('{') {
        serde_json::from_str(text).map(|one| vec![one])
    } else {
        serde_json::from_str(text)
    };
    let subscribers: Vec<Subscriber> =
        parsed.map_err(|e| ImportError { line: e.line() as u64, problem: strip_position(&e.to_string()) })?;
    // JSON records have no lines of their own: their numbers are used instead.
    Ok((1..).zip(subscribers).collect())
}

/// serde_json ends its messages with " at line L column C"; [`ImportError::line`] has the line already.
fn strip_position(message: &str) -> String {
    message.split(" at line ").next().unwrap_or(message).to_owned()
}

fn parse_csv(text: &str) -> Result<Vec<(u64, Subscriber)>, ImportError> {
    let mut reader =
        csv::ReaderBuilder::new().trim(csv::Trim::All).comment(Some(b'#')).from_reader(text.as_bytes());
    let csv_error = |e: csv::Error| ImportError {
        line: e.position().map_or(1, csv::Position::line),
        problem: match e.kind() {
            csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
                format!("{len} fields where the header has {expected_len}")
            }
            _ => "not readable as CSV".to_owned(),
        },
    };
    let header = reader.headers().map_err(csv_error)?.clone();
    if let Some(unknown) = header.iter().find(|name| !COLUMNS.contains(name)) {
        let problem = format!("unknown column `{unknown}`; known are {}", COLUMNS.join(", "));
        return Err(ImportError { line: 1, problem });
    }
    let mut subscribers = Vec::new();
    for record in reader.records() {
        let record = record.map_err(csv_error)?;
        let line = record.position().map_or(0, csv::Position::line);
        if subscribers.len() == IMPORT_MAX {
            return Err(ImportError { line, problem: format!("more than {IMPORT_MAX} subscribers") });
        }
        let field = |name: &str| {
            let column = header.iter().position(|h| h == name)?;
            record.get(column).filter(|value| !value.is_empty())
        };
        let subscriber = subscriber_of(field).map_err(|problem| ImportError { line, problem })?;
        subscribers.push((line, subscriber));
    }
    Ok(subscribers)
}

/// Builds a subscriber from named fields.
fn subscriber_of<'a>(field: impl Fn(&str) -> Option<&'a str>) -> Result<Subscriber, String> {
    fn parse<T: std::str::FromStr<Err: ToString>>(name: &str, value: &str) -> Result<T, String> {
        value.parse().map_err(|e: T::Err| format!("{name}: {}", e.to_string()))
    }
    let required = |name: &str| field(name).ok_or_else(|| format!("`{name}` is missing"));
    let imsi: Imsi = parse("imsi", required("imsi")?)?;
    let operator_code = match (field("opc"), field("op")) {
        (Some(opc), None) => OperatorCode::Opc(parse("opc", opc)?),
        (None, Some(op)) => OperatorCode::Op(parse("op", op)?),
        (Some(_), Some(_)) => return Err("both `opc` and `op` are given; one is enough".into()),
        (None, None) => return Err("`opc` or `op` is missing".into()),
    };
    let authentication = Authentication {
        k: parse("k", required("k")?)?,
        operator_code,
        amf: field("amf").map_or(Ok(Key::new([0x80, 0])), |v| parse("amf", v))?,
        sqn: field("sqn").map_or(Ok(0), |v| parse("sqn", v))?,
    };
    let mut subscriber = Subscriber::new(Supi(imsi), authentication);
    subscriber.msisdn = field("msisdn").map(str::to_owned);
    let default_rate = subscriber.ue_ambr;
    let ambr = Ambr {
        uplink: field("ambr_uplink").map_or(Ok(default_rate.uplink), |v| parse("ambr_uplink", v))?,
        downlink: field("ambr_downlink").map_or(Ok(default_rate.downlink), |v| parse("ambr_downlink", v))?,
    };
    subscriber.ue_ambr = ambr;
    let mut dnn = DnnSubscription::new(parse("dnn", field("dnn").unwrap_or("internet"))?);
    dnn.ambr = ambr;
    let snssai = parse("snssai", field("snssai").unwrap_or("1"))?;
    subscriber.slices = vec![SliceSubscription { snssai, default: true, dnns: vec![dnn] }];
    Ok(subscriber)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::subscriber::example;

    const K: &str = "465B5CE8B199B49FAA5F0A2EE238A6BC";
    const OPC: &str = "E8ED289DEBA952E4283B54E88E6183CA";

    #[test]
    fn csv_columns_come_in_any_order_and_optional_ones_may_miss() {
        let text = format!(
            "# our subscribers\nk, opc, imsi, ambr_downlink\n{K},{OPC},999700000000001,\n{K},{OPC},999700000000002,20 Mbps\n"
        );
        let subscribers = parse(&text).unwrap();
        assert_eq!(subscribers[0], example(999_700_000_000_001));
        assert_eq!(subscribers[1].slices[0].dnns[0].ambr.downlink.bps(), 20_000_000);
    }

    #[test]
    fn json_is_what_show_prints() {
        let wanted = vec![example(1), example(2)];
        let text = serde_json::to_string_pretty(&wanted).unwrap();
        assert_eq!(parse(&text).unwrap(), wanted);
        let one = serde_json::to_string_pretty(&wanted[0]).unwrap();
        assert_eq!(parse(&one).unwrap(), wanted[..1]);
        let error = parse("[{\n\"supi\": 5}]").unwrap_err();
        assert_eq!(error.line, 2);
    }

    #[test]
    fn each_mistake_is_told_with_its_line_and_without_keys() {
        let rows = [
            (format!("imsi,k,opc\n12,{K},{OPC}"), 2, "imsi"),
            (format!("imsi,k,opc\n99970000001,{},{OPC}", &K[1..]), 2, "k:"),
            (format!("imsi,k\n99970000001,{K}"), 2, "`opc` or `op`"),
            (format!("imsi,k,opc\n99970000001,{K},{OPC}\n99970000001,{K},{OPC}"), 3, "line 2 already"),
            (format!("imsi,k,opc,colour\n99970000001,{K},{OPC},red"), 1, "unknown column `colour`"),
            (format!("imsi,k,opc\n99970000001,{K}"), 2, "2 fields where the header has 3"),
            (format!("imsi,k,opc,sqn\n99970000001,{K},{OPC},999999999999999"), 2, "48 bits"),
        ];
        for (text, line, part) in rows {
            let error = parse(&text).unwrap_err();
            assert_eq!(error.line, line, "{error}");
            assert!(error.problem.contains(part), "{error}");
            assert!(!error.problem.contains(&K[1..]), "{error}");
        }
    }
}
