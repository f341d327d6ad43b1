//! Which request the next turn serves.
//!
//! Owns: the order of work. Never: the engine, a clock, a request's content.
//! Invariants: `next` is a pure function of the state; a step never exceeds the engine's rows; never
//! more than `running_max` requests have begun; within a priority prompts are read in the order of
//! arrival; whoever is ready is served within a bounded number of turns.

/// Turns that background work waits for interactive work before it gets one.
pub const PATIENCE: u32 = 8;
/// Decode steps that interactive requests are ahead of background ones when rows are short.
const HEAD_START: u32 = 2;

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// How urgent a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Priority {
    /// Somebody waits.
    #[default]
    Interactive,
    /// Nobody waits.
    Background,
}

/// How far a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It holds no sequence yet.
    Queued,
    /// Part of its prompt is to be read.
    Prefill,
    /// Its next token is to be drawn.
    Decode,
    /// Its reader is behind.
    Paused,
}

/// Who may share a step with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Company {
    /// Anybody.
    #[default]
    Any,
    /// Nobody: it was part of a step that failed.
    None,
}

/// What the schedule knows of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Who.
    pub id: RequestId,
    /// How urgent.
    pub priority: Priority,
    /// How far.
    pub stage: Stage,
    /// Who may share its step.
    pub company: Company,
    /// Turns of its kind that served others while it was ready.
    pub passed: u32,
    /// Drafts it can use.
    pub drafts: usize,
}

/// The kind of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// A part of a prompt was read.
    Prefill,
    /// A step was made.
    Decode,
}

/// What there is to do, and what room there is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// All requests, in the order of arrival.
    pub entries: Vec<Entry>,
    /// Requests that may have begun.
    pub running_max: usize,
    /// Rows of one step.
    pub step_rows: usize,
    /// The last turn.
    pub last: Turn,
}

/// One request's part in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pick {
    /// Who.
    pub id: RequestId,
    /// Drafts, beside the one row that everybody has.
    pub drafts: usize,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Read a part of this request's prompt (and begin it, if it is queued).
    Prefill(RequestId),
    /// Make one step.
    Decode(Vec<Pick>),
    /// Wait for an event.
    Idle,
}

/// The next turn. Prefill and decode alternate while there is work of both kinds.
pub fn next(state: &State) -> Action {
    let reader = next_reader(state);
    let picks = next_step(state);
    match (reader, picks.is_empty()) {
        (None, true) => Action::Idle,
        (Some(id), true) => Action::Prefill(id),
        (None, false) => Action::Decode(picks),
        (Some(id), false) => match state.last {
            Turn::Decode => Action::Prefill(id),
            Turn::Prefill => Action::Decode(picks),
        },
    }
}

/// The value of `passed` after a turn.
pub fn passed_after(entry: &Entry, action: &Action) -> u32 {
    let (served, concerned) = match action {
        Action::Prefill(id) => {
            (entry.id == *id, matches!(entry.stage, Stage::Queued | Stage::Prefill))
        }
        Action::Decode(picks) => {
            (picks.iter().any(|p| p.id == entry.id), entry.stage == Stage::Decode)
        }
        Action::Idle => return entry.passed,
    };
    match (served, concerned) {
        (true, _) => 0,
        (false, true) => entry.passed.saturating_add(1),
        (false, false) => entry.passed,
    }
}

/// Whose prompt is read next.
fn next_reader(state: &State) -> Option<RequestId> {
    let begun = state.entries.iter().filter(|e| e.stage != Stage::Queued).count();
    let ready = |entry: &&Entry| match entry.stage {
        Stage::Prefill => true,
        Stage::Queued => begun < state.running_max,
        Stage::Decode | Stage::Paused => false,
    };
    let first = |priority| state.entries.iter().filter(ready).find(move |e| e.priority == priority);
    let chosen = match (first(Priority::Interactive), first(Priority::Background)) {
        (Some(_), Some(background)) if background.passed >= PATIENCE => background,
        (Some(interactive), _) => interactive,
        (None, background) => background?,
    };
    Some(chosen.id)
}

/// Who takes part in the next step, most entitled first.
fn next_step(state: &State) -> Vec<Pick> {
    let mut ready: Vec<&Entry> =
        state.entries.iter().filter(|e| e.stage == Stage::Decode).collect();
    let rank = |entry: &Entry| match entry.priority {
        Priority::Interactive => entry.passed.saturating_add(HEAD_START),
        Priority::Background => entry.passed,
    };
    // The sort is stable: equals stay in the order of arrival.
    ready.sort_by_key(|entry| std::cmp::Reverse(rank(entry)));
    if ready.first().is_some_and(|entry| entry.company == Company::None) {
        ready.truncate(1);
    } else {
        ready.retain(|entry| entry.company == Company::Any);
        ready.truncate(state.step_rows);
    }
    let mut left = state.step_rows.saturating_sub(ready.len());
    let mut picks: Vec<Pick> = ready.iter().map(|e| Pick { id: e.id, drafts: 0 }).collect();
    let mut depth = 0;
    while left > 0 && ready.iter().any(|e| e.drafts > depth) {
        for (entry, pick) in ready.iter().zip(&mut picks) {
            if entry.drafts > depth && left > 0 {
                pick.drafts += 1;
                left -= 1;
            }
        }
        depth += 1;
    }
    picks
}

#[cfg(test)]
mod tests;
