//! `Leadership::is_valid()` must cost less than 50 ns: it is asked before every
//! effect. `cargo bench -p tenure-bench --bench leadership`

#![allow(
    missing_docs,
    reason = "criterion's macros make undocumented functions"
)]

use std::hint::black_box;
use std::sync::Arc;

use criterion::{Criterion, criterion_group, criterion_main};
use tenure::Election;
use tenure::store::Memory;

fn is_valid(bench: &mut Criterion) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let store = Arc::new(Memory::new());
    let mut election = Election::builder(store, "bench")
        .start()
        .expect("an election");
    let leadership = runtime.block_on(election.elected()).expect("a leadership");
    bench.bench_function("Leadership::is_valid", |bench| {
        bench.iter(|| black_box(&leadership).is_valid());
    });
    assert!(leadership.is_valid(), "it was held all along");
}

criterion_group!(benches, is_valid);
criterion_main!(benches);
