//! Memory of a million sessions' records with their indices.

use std::net::Ipv4Addr;

use anyhow::Context as _;
use replication::record::{Bearer, Kept, Record};
use replication::table::Table;
use replication::template::Template;

const UES: u32 = 1_000_000;
/// What the requests of the experiment's MME have of their own: Create Session, Modify Bearer.
const STORED: [u16; 2] = [19, 4];

/// Megabytes of a table with a million UEs that are as those of the experiment, each found again.
pub(super) fn of_a_million() -> anyhow::Result<f64> {
    let mut table = Table::default();
    let mixed = |number: u32| u64::from(number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for number in 0..UES {
        let names = mixed(number);
        let mut messages = Vec::new();
        for length in STORED {
            let stored = names.to_be_bytes().into_iter().cycle().take(length.into()).collect();
            messages.push(Kept { template: table.enter_template(Template::whole(length))?, stored });
        }
        let address = Ipv4Addr::from_bits(u32::from(Ipv4Addr::new(10, 0, 0, 0)) + number);
        let bearer = Bearer { id: 5, uplink: names as u32, ipv4: Some(address), ipv6: None };
        let record = Record {
            subject: names,
            control: names >> 32,
            anchor: u64::from(number) + 1,
            bearers: vec![bearer],
            messages,
            ..Record::default()
        };
        table.insert(&record)?;
    }
    for number in (0..UES).step_by(997) {
        let found = table.of_subject(mixed(number)).context("a UE is not found by its identity")?;
        let view = table.view(found).context("a record is gone")?;
        let address = view.addresses().next().context("a record without address")?;
        anyhow::ensure!(table.by_address(address) == Some(found), "a UE is not found by its address");
        anyhow::ensure!(
            table.by_anchor(u64::from(number) + 1) == Some(found),
            "a UE is not found by its TEID"
        );
    }
    Ok(table.memory_octets() as f64 / 1e6)
}
