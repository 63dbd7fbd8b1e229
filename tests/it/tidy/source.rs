//! Just enough reading of Rust for the house rules: what is code, what is prose, where items end.
//!
//! [`code_of`] blanks comments, strings and test-only items with spaces, so that every check after it
//! can look for plain text, and line numbers stay what they are.
//!
//! # Not here
//! No grammar. Code made by macros is not seen, and a brace in a const generic would end an item early.

/// `text` with comments and the insides of strings and character literals blanked.
pub(super) fn mask(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while at < chars.len() {
        let end = token_end(&chars, at);
        if end == at {
            out.push(chars[at]);
            at += 1;
        } else {
            out.extend(chars[at..end].iter().map(|c| if *c == '\n' { '\n' } else { ' ' }));
            at = end;
        }
    }
    out
}

/// Where the comment or literal that starts at `at` ends; `at` itself when none starts there.
fn token_end(chars: &[char], at: usize) -> usize {
    let next = chars.get(at + 1).copied();
    let in_word = at > 0 && is_word(chars[at - 1]);
    match chars[at] {
        '/' if next == Some('/') => find(chars, at, |rest| rest[0] == '\n'),
        '/' if next == Some('*') => block_comment_end(chars, at),
        '"' => string_end(chars, at),
        'r' | 'b' | 'c' if !in_word => prefixed_string_end(chars, at).unwrap_or(at),
        '\'' if next == Some('\\') => find(chars, at + 3, |rest| rest[0] == '\'') + 1,
        '\'' if chars.get(at + 2) == Some(&'\'') => at + 3,
        _ => at,
    }
}

fn find(chars: &[char], from: usize, is_end: impl Fn(&[char]) -> bool) -> usize {
    (from..chars.len()).find(|at| is_end(&chars[*at..])).unwrap_or(chars.len())
}

fn block_comment_end(chars: &[char], start: usize) -> usize {
    let (mut depth, mut at) = (0_u32, start);
    while at < chars.len() {
        match (chars[at], chars.get(at + 1)) {
            ('/', Some('*')) => (depth, at) = (depth + 1, at + 2),
            ('*', Some('/')) => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            return at;
        }
    }
    chars.len()
}

/// `start` is the opening quote.
fn string_end(chars: &[char], start: usize) -> usize {
    let mut at = start + 1;
    while at < chars.len() {
        match chars[at] {
            '\\' => at += 2,
            '"' => return at + 1,
            _ => at += 1,
        }
    }
    chars.len()
}

/// `r"…"`, `r#"…"#`, `b"…"`, `br"…"`, `c"…"`, `b'…'`.
fn prefixed_string_end(chars: &[char], start: usize) -> Option<usize> {
    let letters = chars[start..].iter().take_while(|c| matches!(c, 'r' | 'b' | 'c')).count();
    let hashes = chars[start + letters..].iter().take_while(|c| **c == '#').count();
    let quote = start + letters + hashes;
    let is_raw = chars[start..start + letters].contains(&'r');
    match chars.get(quote)? {
        '"' if is_raw => {
            let closes =
                |rest: &[char]| rest[0] == '"' && rest.len() > hashes && rest[1..=hashes].iter().all(|c| *c == '#');
            Some((find(chars, quote + 1, closes) + 1 + hashes).min(chars.len()))
        }
        '"' if hashes == 0 => Some(string_end(chars, quote)),
        '\'' if hashes == 0 && letters == 1 => Some(token_end(chars, quote)),
        _ => None,
    }
}

pub(super) fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// What is compiled into the library: [`mask`]ed, and without items that are only there for tests.
pub(super) fn code_of(text: &str) -> String {
    let mut code = mask(text);
    while let Some(start) = code.find("#[cfg(test)]") {
        let end = item_end(&code, start);
        let blank: String = code[start..end].chars().map(|c| if c == '\n' { '\n' } else { ' ' }).collect();
        code.replace_range(start..end, &blank);
    }
    code
}

/// The end of the item at `start` in masked code: behind its first `;` outside brackets, or behind the
/// brace that closes its first one.
pub(super) fn item_end(code: &str, start: usize) -> usize {
    let (mut braces, mut brackets) = (0_i32, 0_i32);
    for (offset, c) in code[start..].char_indices() {
        match c {
            '(' | '[' => brackets += 1,
            ')' | ']' => brackets -= 1,
            '{' => braces += 1,
            '}' => braces -= 1,
            _ => {}
        }
        if braces < 0 {
            // The end of what is around it: a last field or variant without a comma.
            return start + offset;
        }
        let closes_body = c == '}' && braces == 0 && brackets == 0;
        if closes_body || (c == ';' && braces == 0 && brackets == 0) {
            return start + offset + 1;
        }
    }
    code.len()
}

/// The line, from 1, of a byte offset.
pub(super) fn line_of(text: &str, offset: usize) -> usize {
    text[..offset].matches('\n').count() + 1
}

/// Every place where `word` stands in `code` as a whole word.
pub(super) fn words<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    code.match_indices(word).map(|(at, _)| at).filter(move |at| {
        let before = code[..*at].chars().next_back();
        let after = code[at + word.len()..].chars().next();
        !before.is_some_and(is_word) && !after.is_some_and(is_word)
    })
}

#[test]
fn comments_and_literals_are_blanked_and_lines_kept() {
    let text = "a // x\n/* b /* c */ d */ e \"f \\\" g\" 'h' '\\'' r#\"i \" j\"# b\"k\" &'l m";
    let masked = mask(text);
    assert_eq!(masked.split_whitespace().collect::<Vec<_>>(), ["a", "e", "&'l", "m"]);
    assert_eq!(masked.lines().count(), text.lines().count());
}

#[test]
fn test_only_items_are_no_code() {
    let text = "fn a() {}\n#[cfg(test)]\nmod tests { fn b() { { } } }\n#[cfg(test)]\nuse x::y;\nfn c() {}";
    let code = code_of(text);
    assert!(code.contains("fn a") && code.contains("fn c"), "{code}");
    assert!(!code.contains("fn b") && !code.contains("use x"), "{code}");
}
