//! The server over real engines: the exact reference on the bundled model and on a random one.

use crate::support::{self, Running, options, root};
use cherenkov_engine::{LoadDraft, Options, Runner, SampleParams, Streaming};
use cherenkov_format::Store;
use cherenkov_model::reference::Reference;
use cherenkov_serve::{ServeOptions, TextModel};
use cherenkov_text::{ChatTemplate, Tokenizer};
use serde_json::{Value, json};
use std::sync::Arc;

/// The bundled model on the reference.
async fn pocket(drafts: usize, serve: ServeOptions) -> Running {
    let dir = root().join("assets/pocket");
    let store = Arc::new(Store::open(&dir).expect("the bundled model opens"));
    let tokenizer = Tokenizer::from_file(&dir.join("tokenizer.json")).unwrap();
    let template = ChatTemplate::from_dir(&dir, &tokenizer).unwrap();
    let engine = Options {
        context: 256,
        sequences: 8,
        chunk: 64,
        step_rows: 8,
        draft: LoadDraft::Yes,
        pool_slots: 64,
    };
    let device = Reference::new(store.config().eps);
    let runner = Runner::load(&store, device, engine, Streaming::default()).unwrap();
    let text = TextModel {
        name: "pocket".into(),
        aliases: Vec::new(),
        tokenizer,
        template: Some(template),
        thinking: SampleParams::default(),
        plain: SampleParams::default(),
    };
    let serve = ServeOptions { drafts: Some(drafts), ..serve };
    support::engine(Box::new(runner), text, serve).await
}

fn ask(text: &str, temperature: f64) -> Value {
    json!({ "messages": [{ "role": "user", "content": text }], "enable_thinking": false,
        "temperature": temperature, "seed": 3, "max_tokens": 8 })
}

/// Company, drafts and checkpoints change no answer.
#[tokio::test(flavor = "multi_thread")]
async fn answers_of_the_bundled_model_depend_on_nothing_else() {
    let texts = ["Hello", "What is water?", "Count to three."];
    // Greedy answers are those of the scripted engines' tests; the reference is slow.
    for temperature in [0.9] {
        let alone = pocket(0, ServeOptions { checkpoints: 0, ..options() }).await;
        let mut expected = Vec::new();
        for text in texts {
            let reply = alone.client().post("/v1/chat/completions", &ask(text, temperature)).await;
            assert_eq!(reply.status, 200, "{}", reply.body);
            expected.push(reply.json()["choices"][0]["message"]["content"].clone());
        }
        alone.stop().await.unwrap();
        let together = pocket(3, ServeOptions { quantum: 5, ..options() }).await;
        for _ in 0..2 {
            let client = together.client();
            let asks = texts.map(|text| {
                let client = client.clone();
                tokio::spawn(async move {
                    client.post("/v1/chat/completions", &ask(text, temperature)).await
                })
            });
            for (asked, expected) in asks.into_iter().zip(&expected) {
                let reply = asked.await.unwrap().json();
                assert_eq!(&reply["choices"][0]["message"]["content"], expected);
            }
        }
        assert!(together.snapshots.borrow().counters.cached_tokens > 0);
        together.stop().await.unwrap();
    }
}
