//! The command-line tool, over the public interface only.

fn main() {}
