//! Owns: what the command line decides about the server.
//! Never: reading the environment or files.
//! Invariant: every limit has a default that bounds memory.

use cherenkov_engine::SampleParams;
use cherenkov_text::{ChatTemplate, LocalTime, Tokenizer};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The model as the server speaks of it: names, text, default sampling.
#[derive(Clone, Debug)]
pub struct TextModel {
    /// Name in responses and in `/v1/models`.
    pub name: String,
    /// Further names that requests may use.
    pub aliases: Vec<String>,
    /// Its tokenizer.
    pub tokenizer: Tokenizer,
    /// Its chat template; without one the chat endpoints refuse.
    pub template: Option<ChatTemplate>,
    /// Sampling of answers that begin with thinking, where a request says nothing.
    pub thinking: SampleParams,
    /// Sampling of all other answers, where a request says nothing.
    pub plain: SampleParams,
}

/// Which model names a request may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Names {
    /// The model's name and its aliases; others are a 404.
    #[default]
    Listed,
    /// Any: the one model answers.
    Any,
}

/// Whether room for the answer is kept when thinking would use it up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Reserve {
    /// The think block is closed when 15 % of the request's cap, at most 1,024 tokens, are left.
    #[default]
    Keep,
    /// Thinking may use the whole cap.
    Off,
}

/// Where times come from.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> Duration + Send + Sync>);

impl Clock {
    /// The system's clock.
    pub fn system() -> Self {
        Self::new(|| SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
    }

    /// A clock that tells the time since the beginning of 1970 in its own way.
    pub fn new(tell: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        Self(Arc::new(tell))
    }

    pub(crate) fn now(&self) -> Duration {
        (self.0)()
    }

    /// The civil time in UTC, for templates that print the date.
    pub(crate) fn civil(&self) -> LocalTime {
        let seconds = self.now().as_secs();
        // Days since 0000-03-01, in eras of 400 years (H. Hinnant, "chrono-compatible date algorithms").
        let days = seconds / 86_400 + 719_468;
        let (era, day) = (days / 146_097, days % 146_097);
        let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
        let day = day - (365 * year + year / 4 - year / 100);
        let shifted = (5 * day + 2) / 153;
        let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
        let rest = seconds % 86_400;
        LocalTime {
            year: (year + era * 400 + u64::from(month <= 2)) as u16,
            month: month as u8,
            day: (day - (153 * shifted + 2) / 5 + 1) as u8,
            hour: (rest / 3600) as u8,
            minute: (rest / 60 % 60) as u8,
            second: (rest % 60) as u8,
        }
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Clock")
    }
}

/// How the server behaves.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// Which model names are answered.
    pub names: Names,
    /// Requests that run at a time; `None`: as many as one step has rows.
    pub running: Option<usize>,
    /// Requests that may wait beside those that run; more get a 429.
    pub queue: usize,
    /// How long a request may wait for its first turn.
    pub queue_time: Duration,
    /// What a 429 or 503 says in `retry-after`, in seconds.
    pub retry_after_s: u64,
    /// Prompt tokens of one turn while other requests decode.
    pub quantum: usize,
    /// Most drafts of one request per step; `None`: what the engine can.
    pub drafts: Option<usize>,
    /// Prefix checkpoints kept, in sequences that no request needs.
    pub checkpoints: usize,
    /// Items a reader may be behind before its request pauses.
    pub outbox: usize,
    /// Ceiling of an answer's tokens; `None`: the rest of the context.
    pub max_tokens: Option<usize>,
    /// Whether thinking leaves room for the answer.
    pub reserve: Reserve,
    /// Bytes of a request's body.
    pub body_bytes_max: usize,
    /// Origins that pages may call from; `*` is any; empty: none.
    pub cors: Vec<String>,
    /// Keys, one of which a request must show; empty: none needed.
    pub api_keys: Vec<String>,
    /// Host names accepted on a loopback address beside loopback names.
    pub hosts: Vec<String>,
    /// Silence in a stream after which an event shows that the server lives.
    pub keep_alive: Duration,
    /// How long running requests may finish after the shutdown began.
    pub drain: Duration,
    /// Where times come from.
    pub clock: Clock,
    /// Part of every response id that tells this run of the server from others.
    pub instance: String,
}

impl Default for ServeOptions {
    fn default() -> Self {
        Self {
            names: Names::default(),
            running: None,
            queue: 64,
            queue_time: Duration::from_secs(600),
            retry_after_s: 5,
            quantum: 512,
            drafts: None,
            checkpoints: 64,
            outbox: 64,
            max_tokens: None,
            reserve: Reserve::default(),
            body_bytes_max: 32 << 20,
            cors: Vec::new(),
            api_keys: Vec::new(),
            hosts: Vec::new(),
            keep_alive: Duration::from_secs(10),
            drain: Duration::from_secs(30),
            clock: Clock::system(),
            instance: String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn civil_times() {
        let at = |seconds| Clock::new(move || Duration::from_secs(seconds)).civil();
        let expect = |year, month, day, hour, minute, second| LocalTime {
            year,
            month,
            day,
            hour,
            minute,
            second,
        };
        assert_eq!(at(0), expect(1970, 1, 1, 0, 0, 0));
        assert_eq!(at(951_782_399), expect(2000, 2, 28, 23, 59, 59));
        assert_eq!(at(951_782_400), expect(2000, 2, 29, 0, 0, 0));
        assert_eq!(at(1_709_251_200), expect(2024, 3, 1, 0, 0, 0));
        assert_eq!(at(1_735_689_599), expect(2024, 12, 31, 23, 59, 59));
    }
}
