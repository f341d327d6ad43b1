//! An engine without a model: it says what a script says, and fails when told to.

use super::tokenizer;
use cherenkov_engine::{
    Drawn, Engine, Error, Info, LoadDraft, Options, Result, Runner, SeqId, Snapshot, Step,
    Streamed, Streaming,
};
use cherenkov_format::Store;
use cherenkov_format::pack::{self, Precision};
use cherenkov_model::reference::Reference;
use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::Duration;

/// Sequences that a script can hold.
const SEQUENCES: usize = 32;

/// Ids of sequences. Only an engine makes them, so a real one does, once.
fn ids() -> &'static [SeqId] {
    static IDS: OnceLock<Vec<SeqId>> = OnceLock::new();
    IDS.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("store");
        let packing = pack::Options {
            experts: Precision::Bf16,
            dense: Precision::Bf16,
            ngram: Precision::Bf16,
            ..pack::Options::default()
        };
        let source = super::root().join("fixtures/random/base");
        pack::pack(&source, &out, &packing, &mut cherenkov_format::progress::Silent).unwrap();
        let store = Arc::new(Store::open(&out).unwrap());
        let options = Options {
            context: 8,
            sequences: SEQUENCES,
            chunk: 8,
            step_rows: 8,
            draft: LoadDraft::No,
            pool_slots: 4,
        };
        let device = Reference::new(store.config().eps);
        let mut runner = Runner::load(&store, device, options, Streaming::default()).unwrap();
        (0..SEQUENCES).map(|_| runner.open().unwrap()).collect()
    })
}

/// How an engine fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The whole step fails.
    Step,
    /// Only this sequence's draw fails.
    Draw,
    /// The call panics.
    Panic,
    /// The call panics, and so does every later one.
    PanicForEver,
}

#[derive(Default)]
struct Inner {
    /// Calls that may be made; `None`: any number.
    permits: Option<usize>,
    /// Fault of steps with a sequence that holds these tokens.
    poison: Option<(Vec<u32>, Fault)>,
    broken: bool,
    calls: Vec<String>,
    open: usize,
    widest: usize,
}

/// Steers a scripted engine from a test.
#[derive(Clone, Default)]
pub struct Control(Arc<(Mutex<Inner>, Condvar)>);

impl Control {
    fn with<T>(&self, f: impl FnOnce(&mut Inner) -> T) -> T {
        f(&mut self.0.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    /// Lets so many calls through, then holds the engine.
    pub fn hold_after(&self, calls: usize) {
        self.with(|inner| inner.permits = Some(calls));
        self.0.1.notify_all();
    }

    /// Lets all calls through.
    pub fn release(&self) {
        self.with(|inner| inner.permits = None);
        self.0.1.notify_all();
    }

    /// Steps with a sequence that holds this text fail.
    pub fn poison(&self, text: &str, fault: Fault) {
        let tokens = tokenizer().encode(text).unwrap();
        self.with(|inner| inner.poison = Some((tokens, fault)));
    }

    pub fn cure(&self) {
        self.with(|inner| inner.poison = None);
    }

    /// Prompt tokens that were run so far.
    pub fn read(&self) -> usize {
        let number = |call: &String| call.strip_prefix("prefill ")?.parse::<usize>().ok();
        self.with(|inner| inner.calls.iter().filter_map(number).sum())
    }

    /// Sequences that are open.
    pub fn open(&self) -> usize {
        self.with(|inner| inner.open)
    }

    /// Most sequences of one step.
    pub fn widest(&self) -> usize {
        self.with(|inner| inner.widest)
    }

    /// Waits for a permit, then notes the call.
    fn enter(&self, call: String) {
        let (lock, changed) = &*self.0;
        let guard = lock.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut guard = changed.wait_while(guard, |inner| inner.permits == Some(0)).unwrap();
        if let Some(permits) = &mut guard.permits {
            *permits -= 1;
        }
        guard.calls.push(call);
        let broken = guard.broken;
        drop(guard);
        assert!(!broken, "the script is broken for good");
    }
}

/// What a script says next after all tokens of a sequence.
pub type Says = Arc<dyn Fn(&[u32]) -> u32 + Send + Sync>;

struct Open {
    tokens: Vec<u32>,
    emitted: usize,
}

/// The engine.
pub struct Scripted {
    info: Info,
    says: Says,
    control: Control,
    open: HashMap<SeqId, Open>,
    pub pause: Duration,
}

impl Scripted {
    pub fn new(says: Says) -> Self {
        ids();
        let end = tokenizer().id_of("<|im_end|>").unwrap();
        let text = tokenizer().id_of("<|endoftext|>").unwrap();
        let info = Info {
            device: "script",
            vocab: tokenizer().vocab_size(),
            context: 2048,
            sequences: 16,
            step_rows: 8,
            chunk: 64,
            drafts: 0,
            stop: vec![text, end],
        };
        let control = Control::default();
        Self { info, says, control, open: HashMap::new(), pause: Duration::ZERO }
    }

    /// An engine that answers the last of these texts that its prompt holds.
    pub fn replies(replies: &[(&str, &str)]) -> Self {
        Self::new(replying(replies))
    }

    /// The same engine, changed.
    pub fn with(mut self, change: impl FnOnce(&mut Info)) -> Self {
        change(&mut self.info);
        self
    }

    pub fn control(&self) -> Control {
        self.control.clone()
    }

    fn get(&mut self, seq: SeqId) -> Result<&mut Open> {
        self.open.get_mut(&seq).ok_or(Error::Order("not open"))
    }

    fn insert(&mut self, tokens: Vec<u32>) -> Result<SeqId> {
        let free = ids()[..self.info.sequences].iter().find(|id| !self.open.contains_key(id));
        let free = *free.ok_or(Error::Order("all sequences are in use"))?;
        self.open.insert(free, Open { tokens, emitted: 0 });
        self.control.with(|inner| inner.open = self.open.len());
        Ok(free)
    }

    fn fault(&self, seq: SeqId) -> Option<Fault> {
        let (needle, fault) = self.control.with(|inner| inner.poison.clone())?;
        let tokens = &self.open.get(&seq)?.tokens;
        tokens.windows(needle.len()).any(|w| w == needle).then_some(fault)
    }

    fn logits(&self, tokens: &[u32]) -> Vec<f32> {
        let mut logits = vec![0.0; self.info.vocab];
        logits[(self.says)(tokens) as usize] = 20.0;
        // A second choice, so that sampling has something to choose from.
        let second = tokens.iter().fold(7u32, |h, t| h.wrapping_mul(31).wrapping_add(*t));
        logits[(second % 200) as usize + 300] += 18.0;
        logits
    }
}

impl Engine for Scripted {
    fn info(&self) -> &Info {
        &self.info
    }

    fn open(&mut self) -> Result<SeqId> {
        self.insert(Vec::new())
    }

    fn fork(&mut self, seq: SeqId) -> Result<SeqId> {
        let tokens = self.get(seq)?.tokens.clone();
        self.control.with(|inner| inner.calls.push(format!("fork {}", tokens.len())));
        self.insert(tokens)
    }

    fn close(&mut self, seq: SeqId) {
        self.open.remove(&seq).expect("an open sequence is closed");
        self.control.with(|inner| inner.open = self.open.len());
    }

    fn tokens(&self, seq: SeqId) -> Result<Vec<u32>> {
        self.open.get(&seq).map(|o| o.tokens.clone()).ok_or(Error::Order("not open"))
    }

    fn prefill(&mut self, seq: SeqId, tokens: &[u32]) -> Result<()> {
        self.control.enter(format!("prefill {}", tokens.len()));
        std::thread::sleep(self.pause);
        let limit = self.info.context;
        let open = self.get(seq)?;
        open.emitted = 0;
        open.tokens.extend_from_slice(tokens);
        let needed = open.tokens.len();
        if needed > limit { Err(Error::Context { needed, limit }) } else { Ok(()) }
    }

    fn score(&mut self, seq: SeqId, tokens: &[u32], see: &mut dyn FnMut(&[f32])) -> Result<()> {
        let mut all = self.tokens(seq)?;
        let run = all.len().saturating_sub(1)..(all.len() + tokens.len()).saturating_sub(1);
        all.extend_from_slice(tokens);
        run.for_each(|last| see(&self.logits(&all[..=last])));
        self.prefill(seq, tokens)
    }

    fn decode(&mut self, steps: &mut [Step<'_>]) -> Result<()> {
        self.control.enter(format!("decode {}", steps.len()));
        std::thread::sleep(self.pause);
        let rows: usize = steps.iter().map(|s| 1 + s.drafts).sum();
        assert!(rows <= self.info.step_rows, "a step of {rows} rows");
        self.control.with(|inner| inner.widest = inner.widest.max(steps.len()));
        for step in steps.iter() {
            match self.fault(step.seq) {
                Some(Fault::Step) => {
                    let error = cherenkov_model::Error::Exhausted { what: "script", limit: 0 };
                    return Err(error.into());
                }
                Some(Fault::Panic) => {
                    self.control.cure();
                    panic!("the script panics");
                }
                Some(Fault::PanicForEver) => {
                    self.control.with(|inner| inner.broken = true);
                    panic!("the script panics for ever");
                }
                Some(Fault::Draw) | None => {}
            }
        }
        for step in steps {
            if self.fault(step.seq) == Some(Fault::Draw) {
                step.failure = Some(Error::NonFinite { position: 0 });
                continue;
            }
            let mut tokens = self.tokens(step.seq)?;
            assert!(tokens.len() < self.info.context, "the context is full");
            for _ in 0..=step.drafts {
                let drawn: Drawn = step.sampler.draw(&self.logits(&tokens), tokens.len())?;
                step.sampler.accept(drawn.token);
                tokens.push(drawn.token);
                let ends = step.stop.contains(&drawn.token);
                step.out.push(drawn);
                if ends {
                    break;
                }
            }
            let emitted = step.out.len();
            *self.get(step.seq)? = Open { tokens, emitted };
        }
        Ok(())
    }

    fn commit(&mut self, seq: SeqId, count: usize) -> Result<()> {
        let open = self.get(seq)?;
        assert!(count > 0 && count <= open.emitted);
        open.tokens.truncate(open.tokens.len() - open.emitted + count);
        open.emitted = 0;
        Ok(())
    }

    fn save(&mut self, _: SeqId) -> Result<Vec<u8>> {
        Err(Error::Order("a script saves nothing"))
    }

    fn restore(&mut self, _: &[u8]) -> Result<SeqId> {
        Err(Error::Order("a script restores nothing"))
    }

    fn resize_pool(&mut self, slots: usize) -> Result<usize> {
        Ok(slots)
    }

    fn snapshot(&self) -> Snapshot {
        Snapshot::default()
    }

    fn streamed(&self) -> Streamed {
        Streamed::default()
    }
}

/// The tokens after the last of these texts, if one is there.
fn after<'a>(tokens: &'a [u32], marks: &[&str]) -> Option<&'a [u32]> {
    marks.iter().find_map(|mark| {
        let mark = tokenizer().encode(mark).unwrap();
        let at = tokens.windows(mark.len()).rposition(|w| w == mark)?;
        Some(&tokens[at + mark.len()..])
    })
}

/// What follows the first of these texts that the tokens begin with.
fn strip<'a>(tokens: &'a [u32], heads: &[&str]) -> Option<&'a [u32]> {
    heads.iter().find_map(|head| tokens.strip_prefix(&tokenizer().encode(head).unwrap()[..]))
}

/// Says the reply to the last text that the prompt holds. Prompts end with an assistant's turn or, without a
/// template, with `=>`. After a think block that was closed from outside it says `cut short`.
pub fn replying(replies: &[(&str, &str)]) -> Says {
    let replies: Vec<(String, Vec<u32>)> = replies
        .iter()
        .map(|(text, reply)| {
            let mut tokens = tokenizer().encode(reply).unwrap();
            tokens.push(tokenizer().id_of("<|im_end|>").unwrap());
            ((*text).to_owned(), tokens)
        })
        .collect();
    let mut cut = tokenizer().encode("cut short").unwrap();
    cut.push(tokenizer().id_of("<|im_end|>").unwrap());
    Arc::new(move |tokens| {
        let turn = after(tokens, &["<|im_start|>assistant\n"]);
        let said = match turn {
            Some(turn) => strip(turn, &["<think>\n\n</think>\n\n", "<think>\n"]),
            None => after(tokens, &["=>"]),
        };
        // Nothing was asked: the turn ends.
        let Some(said) = said else { return *cut.last().unwrap() };
        let asked = &tokens[..tokens.len() - said.len()];
        let asked = String::from_utf8(
            asked.iter().flat_map(|t| tokenizer().token_bytes(*t).unwrap().to_vec()).collect(),
        );
        let asked = asked.unwrap();
        let found = replies.iter().filter_map(|(text, r)| Some((asked.rfind(text.as_str())?, r)));
        let reply = found.max_by_key(|(at, _)| *at).map(|(_, r)| r).expect("a reply is scripted");
        if reply.starts_with(said) {
            return *reply.get(said.len()).unwrap_or(reply.last().unwrap());
        }
        // Sampling or a closed think block left the script.
        let closed = after(said, &["</think>\n\n"]).unwrap_or(&[]);
        *cut.get(closed.len()).unwrap_or(cut.last().unwrap())
    })
}
