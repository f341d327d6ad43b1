//! The server as its clients see it: over scripted engines, and over real ones.

mod anthropic;
mod concurrency;
mod lifecycle;
mod openai;
mod real;
mod sdks;
mod support;
