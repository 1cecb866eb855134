//! The check of a server's clock against ours: its offset, and its rate.

use super::server::Server;
use crate::clock;
use crate::findings::Findings;
use holdline_kernel::Time;
use redis::FromRedisValue;
use std::time::Duration;

/// One reading of a server's clock.
#[derive(Clone, Copy)]
pub(super) struct Clock {
    /// Its time, in microseconds since 1970.
    theirs: i64,
    /// Our time, at the middle of the round trip.
    wall: i64,
    at: Time,
    trip: Duration,
}

/// The least time over which two clocks' rates are compared.
const SPAN: Duration = Duration::from_millis(500);
/// The difference in rate that leases allow for, in percent.
const RATE_PERCENT: f64 = 1.0;

impl Clock {
    pub(super) async fn read(server: &mut Server) -> Option<Clock> {
        let began = clock::now();
        let reply = server.ask(&["TIME"]).await.ok()?;
        let trip = began.until(clock::now());
        let half = i64::try_from(trip.as_micros() / 2).unwrap_or(0);
        let wall = i64::try_from(clock::wall_micros()).unwrap_or(0) - half;
        let (seconds, micros) = <(i64, i64)>::from_redis_value(reply).ok()?;
        Some(Clock { theirs: seconds * 1_000_000 + micros, wall, at: began.after(trip / 2), trip })
    }

    /// Reads the clock again, and compares.
    pub(super) async fn compare(self, server: &mut Server, findings: &mut Findings) {
        clock::pause(SPAN.saturating_sub(self.at.until(clock::now()))).await;
        let Some(later) = Clock::read(server).await else { return };
        let ahead = later.theirs - later.wall;
        let name = server.config.servers.address();
        // The uncertainty of the round trips is counted in the server's favour.
        let (ours, theirs) = (self.at.until(later.at), later.theirs - self.theirs);
        let open = (self.trip + later.trip).as_secs_f64() / 2.0 + 0.002;
        let off = theirs as f64 / 1e6 - ours.as_secs_f64();
        if off.abs() - open > ours.as_secs_f64() * RATE_PERCENT / 100.0 {
            return findings.problem(
                "clock",
                format!("in {ours:.1?} its clock went {off:+.3} s further than ours"),
                "it was set, or runs at another rate, so leases end too soon or too late; slew \
                 it with NTP (chrony needs maxslewrate 5000), and never set it",
            );
        }
        findings.clock(name, ahead);
    }
}
