//! The verbs through the public API, on a real disk.

use std::time::Duration;

use reappear::{ErrorKind, Options, Store};

#[tokio::test]
async fn what_is_sent_is_received_and_gone_after_ack() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("jobs");
    let store = Store::open_with(&path, Options::new().segment_len(64 * 1024)).await.unwrap();
    let queue = store.queue("q").unwrap();
    let first = queue.send("one").await.unwrap();
    let second = queue.send("two").await.unwrap();
    assert!(first < second);
    let job = queue.receive().one().await.unwrap().unwrap();
    assert_eq!((job.id(), job.body(), job.receive_count()), (first, b"one".as_slice(), 1));
    job.ack().await.unwrap();
    assert_eq!(job.ack().await.unwrap_err().kind(), ErrorKind::NotFound);
    store.close().await.unwrap();
    drop((store, queue));

    let store = Store::open(&path).await.unwrap();
    println!("{:?}", store.report());
    let queue = store.queue("q").unwrap();
    let job = queue.receive().wait(Duration::from_secs(5)).one().await.unwrap().unwrap();
    assert_eq!(job.id(), second);
    job.ack().await.unwrap();
    assert!(queue.receive().one().await.unwrap().is_none());
    println!("{:#?}", queue.stats().await.unwrap());
    println!("{:#?}", store.stats().await.unwrap());
    store.close().await.unwrap();
}
