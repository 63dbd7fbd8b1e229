//! The examples of `docs/format.md`: they decode, and encoding gives the same bytes.

use super::super::format::{CLEAN, END_MARK, Footer, FrameHeader, Predecessor, SegmentHeader, Spot, payload_crc};
use super::*;

const PAGE: &str = include_str!("../../../docs/format.md");
const STORE: StoreId = StoreId([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]);
const SPOT: Spot = Spot { seed: 0, segment: 3, offset: 512 };

/// The bytes of the page's example `name`: rows of an offset and up to 16 bytes; rows that are left
/// out are zeros.
fn example(name: &str, len: usize) -> Vec<u8> {
    let start = format!("```hex {name}\n");
    let (_, rest) = PAGE.split_once(&start).unwrap_or_else(|| panic!("docs/format.md has no example {name}"));
    let (rows, _) = rest.split_once("```").unwrap();
    let mut bytes = vec![0; len];
    for row in rows.lines() {
        let mut words = row.split_whitespace();
        let at = usize::from_str_radix(words.next().unwrap(), 16).unwrap();
        for (at, word) in (at..).zip(words) {
            bytes[at] = u8::from_str_radix(word, 16).unwrap();
        }
    }
    bytes
}

/// The rows to put there, for the message when they differ.
fn rows(bytes: &[u8]) -> String {
    let rows = bytes.chunks(16).enumerate().filter(|(_, row)| row.iter().any(|byte| *byte != 0));
    rows.map(|(at, row)| {
        let hex = row.iter().map(|byte| format!(" {byte:02x}")).collect::<String>();
        format!("{:04x} {hex}\n", at * 16)
    })
    .collect()
}

fn assert_example(name: &str, bytes: &[u8]) {
    assert!(example(name, bytes.len()) == bytes, "the example {name} should be\n{}", rows(bytes));
}

fn segment_header() -> SegmentHeader {
    let predecessor = Predecessor { number: 2, end: 0xA00, base: Lsn(0x21), last: Lsn(0x29), chain: 0xC0DE_CAFE };
    SegmentHeader { number: 3, epoch: 2, base: Lsn(0x2A), clock: Timestamp(1_700_000_000_000), predecessor }
}

fn example_checkpoint(generation: u64) -> Checkpoint {
    Checkpoint {
        generation,
        lsn: Lsn(0x28),
        durable_lsn: Lsn(0x29),
        first_segment: 2,
        boot_id: Some([0xB0; 16]),
        index_generation: 5,
        live_count: 6,
        live_hash: 0x0123_4567_89AB_CDEF,
        clock: Timestamp(1_700_000_000_000),
        clean: true,
    }
}

#[test]
fn the_store_file_is_as_the_page_says() {
    let disk = SimDisk::new(1);
    let made = StoreFile::create_new(&disk.fs(), Path::new("/"), STORE, Timestamp(1_700_000_000_000)).unwrap();
    assert_example("store", &disk.read_raw("/STORE").unwrap());
    disk.write_raw("/STORE", example("store", 512));
    assert_eq!(StoreFile::read(&disk.fs(), Path::new("/")).unwrap(), made);
}

#[test]
fn the_checkpoint_is_as_the_page_says() {
    let disk = SimDisk::new(1);
    CheckpointFile::create(&disk.fs(), Path::new("/"), STORE.seed(), &example_checkpoint(0)).unwrap();
    let bytes = disk.read_raw("/CHECKPOINT").unwrap();
    assert_eq!(bytes.len(), 8192);
    assert_example("checkpoint", &bytes[..4096]);
    disk.write_raw("/CHECKPOINT", [example("checkpoint", 4096), vec![0; 4096]].concat());
    let (_, found, damaged) = CheckpointFile::open(&disk.fs(), Path::new("/"), STORE.seed()).unwrap();
    assert_eq!((found, damaged), (example_checkpoint(2), true));
}

#[test]
fn the_segment_header_is_as_the_page_says() {
    let header = segment_header();
    assert_example("segment-header", &header.encode(STORE.0, STORE.seed()));
    let bytes = example("segment-header", 512);
    let decoded = SegmentHeader::decode(Path::new("x"), &bytes, STORE.0, STORE.seed()).unwrap().unwrap();
    assert_eq!(decoded.0, header);
}

#[test]
fn the_footer_is_as_the_page_says() {
    let footer = Footer { number: 3, end: 1024, last: Lsn(0x2A), chain: 0x600D_CAFE };
    assert_example("footer", &footer.encode(STORE.seed()));
    let decoded = Footer::decode(Path::new("x"), &example("footer", 512), 3, 1024, STORE.seed());
    assert_eq!(decoded.unwrap(), Some(footer));
}

#[test]
fn the_frame_with_one_sent_record_is_as_the_page_says() {
    let spot = Spot { seed: STORE.seed(), ..SPOT };
    let bytes = example("frame", 512);
    let (header, _) = FrameHeader::decode(&bytes, spot).expect("the page's frame does not decode");
    let end = FRAME_HEADER_LEN + header.payload_len as usize;
    let payload = &bytes[FRAME_HEADER_LEN..end];
    assert!(header.holds(payload, spot));
    assert_eq!(bytes[end], END_MARK);
    let block = segment_header().encode(STORE.0, STORE.seed());
    let expected = FrameHeader {
        payload_len: header.payload_len,
        payload_crc: payload_crc(payload, spot, 2),
        first_lsn: Lsn(0x2A),
        record_count: 1,
        flags: 0,
        previous: u32::from_le_bytes(block[508..].try_into().unwrap()),
        epoch: 2,
        durable_lsn: Lsn(0x29),
        clock: Timestamp(1_700_000_000_123),
    };
    assert_eq!(header, expected);
    assert_eq!(expected.encode(spot).0, bytes[..FRAME_HEADER_LEN]);
    assert_eq!(header.flags & CLEAN, 0);
}

#[test]
fn the_pages_frame_is_what_the_log_writes() {
    let page = example("frame", 512);
    let len = u32::from_le_bytes(page[8..12].try_into().unwrap()) as usize;
    let spot = Spot { seed: STORE.seed(), ..SPOT };
    let disk = SimDisk::new(1);
    disk.write_raw("/log/00000000000000000042.seg", {
        let header = segment_header().encode(STORE.0, STORE.seed());
        [header, vec![0; 4096]].concat()
    });
    let store = StoreFile::create_new(&disk.fs(), Path::new("/"), STORE, Timestamp(1)).unwrap();
    let options = RecoverOptions {
        segment_len: 4096,
        tail: Tail::Refuse,
        checkpoint: None,
        from: Lsn::ZERO,
        now: Timestamp(1),
        read_only: false,
    };
    let fs = disk.fs();
    let mut log = recover(&fs, Path::new("/"), &store, options, &mut |_| Ok(()), &mut |_, _| {}).unwrap().log;
    log.epoch = 2;
    assert_eq!(log.begin(len, Room::Ordinary).unwrap(), FrameStart { segment: spot.segment, payload_offset: 512 + 64 });
    let mut frame = vec![0; FRAME_HEADER_LEN];
    frame.extend(&page[FRAME_HEADER_LEN..FRAME_HEADER_LEN + len]);
    log.append(&mut frame, 1, Timestamp(1_700_000_000_123)).unwrap();
    assert_example("frame", &frame);
}
