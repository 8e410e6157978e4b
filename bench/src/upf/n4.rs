//! Sessions per second over N4: requests come over UDP, many at a time, and are decoded, applied and answered.
//! Client and UPF have a core each. Requests are made before the clock starts, and encoded while it runs.

use super::client::Client;
use super::network::Network;
use super::subscriber::Subscriber;
use super::under_test::UnderTest;
use super::{RATE, Run, ends, world};

/// Measures a new UPF in each round.
///
/// # Errors
/// The process may not make namespaces, or a session is refused.
pub(super) fn run(run: &mut Run, core: usize) -> anyhow::Result<()> {
    let network = Network::build()?;
    let (rounds, sessions) = run.plan.n4;
    for round in 0..rounds {
        run.progress.say(&format!("N4: {sessions} sessions, round {round}"));
        let upf = UnderTest::start(&network.upf, world::config(sessions)?, core)?;
        let mut client = Client::associate(&network.gnb)?;
        let request = |number| Subscriber(number).request(ends::gnb());
        let requests: Vec<_> = (0..sessions as u32).map(request).collect();
        let (established, took) = client.establish(requests.into_iter())?;
        let rate = established.len() as f64 / took.as_secs_f64();
        run.results.add("n4.sessions_per_s".to_owned(), RATE, sessions, rate);
        upf.stop()?;
    }
    Ok(())
}
