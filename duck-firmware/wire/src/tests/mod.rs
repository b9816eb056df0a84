//! Both ends together on a fake clock, over a link that loses, doubles, delays, reorders and damages frames.

mod hostile;
mod model;
mod pair;
mod recovery;
mod simulator;
mod specification;
