//! Slurm's host lists: `node[01-03,07]-ib,gpu5` expands to node01-ib, node02-ib, node03-ib,
//! node07-ib and gpu5. Pure.

use slowmo_actors::ports::discovery::DISCOVERED_MAX;

/// Largest number of hosts that a list may expand to.
pub const HOSTS_MAX: usize = DISCOVERED_MAX;
/// Longest list, in bytes.
pub const LIST_BYTES_MAX: usize = 1 << 16;
/// Longest number in brackets, in digits.
pub const DIGITS_MAX: usize = 9;
/// Longest name that a list may expand to, in bytes; the domain name system allows none longer.
pub const NAME_BYTES_MAX: usize = 255;

/// Error for a host list that was refused. Nothing was expanded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{fault} (at byte {at} of the host list)")]
pub struct HostlistError {
    /// Position of the fault, in bytes from 0.
    pub at: usize,
    /// The fault at that position.
    pub fault: Fault,
}

/// Kind of fault in a host list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// A name or number is missing: between two commas, in brackets, or in an empty list.
    #[error("a name or a number is missing")]
    Missing,
    /// A character that is not allowed in a host name.
    #[error("{0:?} is in no host name")]
    Character(char),
    /// A `]` without `[`, a `[` without `]`, or nested brackets.
    #[error("brackets do not match")]
    Brackets,
    /// The text in brackets is not a number of 1 to `DIGITS_MAX` digits.
    #[error("a number of 1 to {DIGITS_MAX} digits must stand here")]
    Number,
    /// A range whose end is below its start.
    #[error("a range ends before it begins")]
    Backwards,
    /// More than [`HOSTS_MAX`] hosts.
    #[error("more than {HOSTS_MAX} hosts")]
    TooMany,
    /// A list longer than [`LIST_BYTES_MAX`], or a name longer than `NAME_BYTES_MAX`.
    #[error("the list is longer than {LIST_BYTES_MAX} bytes, or a name than {NAME_BYTES_MAX}")]
    TooLong,
}

/// Expands a list to its hosts, in the order of the list.
///
/// # Errors
/// The text is not a host list, or it exceeds a bound.
pub fn expand(list: &str) -> Result<Vec<String>, HostlistError> {
    if list.len() > LIST_BYTES_MAX {
        return Err(HostlistError {
            at: LIST_BYTES_MAX,
            fault: Fault::TooLong,
        });
    }
    let mut hosts = Vec::new();
    for (at, entry) in entries(list)? {
        let names = expand_entry(at, entry)?;
        if hosts.len() + names.len() > HOSTS_MAX {
            return Err(HostlistError {
                at,
                fault: Fault::TooMany,
            });
        }
        hosts.extend(names);
    }
    Ok(hosts)
}

/// Splits a list at the commas outside brackets; returns each entry with its position in bytes.
fn entries(list: &str) -> Result<Vec<(usize, &str)>, HostlistError> {
    let mut entries = Vec::new();
    let mut begin = 0;
    let mut open = None;
    for (at, character) in list.char_indices() {
        match (character, open) {
            ('[', None) => open = Some(at),
            (']', Some(_)) => open = None,
            ('[', Some(_)) | (']', None) => {
                return Err(HostlistError {
                    at,
                    fault: Fault::Brackets,
                });
            }
            (',', None) => {
                entries.push((begin, &list[begin..at]));
                begin = at + 1;
            }
            _ => {}
        }
    }
    entries.push((begin, &list[begin..]));
    open.map_or(Ok(entries), |at| {
        Err(HostlistError {
            at,
            fault: Fault::Brackets,
        })
    })
}

/// Expands one entry, whose brackets match, to every combination of one number from each pair of
/// brackets.
fn expand_entry(at: usize, entry: &str) -> Result<Vec<String>, HostlistError> {
    if entry.is_empty() {
        return Err(HostlistError {
            at,
            fault: Fault::Missing,
        });
    }
    let mut names = vec![String::new()];
    let mut rest = entry;
    while !rest.is_empty() {
        let here = at + entry.len() - rest.len();
        let (plain, behind) = rest.split_at(rest.find('[').unwrap_or(rest.len()));
        check_plain(here, plain)?;
        names.iter_mut().for_each(|name| name.push_str(plain));
        rest = "";
        if let Some((inside, next)) = behind
            .strip_prefix('[')
            .and_then(|behind| behind.split_once(']'))
        {
            let numbers = numbers(here + plain.len() + 1, inside)?;
            if names.len() * numbers.len() > HOSTS_MAX {
                return Err(HostlistError {
                    at: here,
                    fault: Fault::TooMany,
                });
            }
            names = names
                .iter()
                .flat_map(|name| numbers.iter().map(move |number| format!("{name}{number}")))
                .collect();
            rest = next;
        }
        // Checked after each pair of brackets, because all names grow with each pair and memory
        // must stay bounded.
        if names.iter().any(|name| name.len() > NAME_BYTES_MAX) {
            return Err(HostlistError {
                at,
                fault: Fault::TooLong,
            });
        }
    }
    Ok(names)
}

fn check_plain(at: usize, plain: &str) -> Result<(), HostlistError> {
    // Checked early, because the plain text is copied once per combination of numbers.
    if plain.len() > NAME_BYTES_MAX {
        return Err(HostlistError {
            at,
            fault: Fault::TooLong,
        });
    }
    let is_foreign = |character: &(usize, char)| {
        !(character.1.is_ascii_alphanumeric() || "-_.".contains(character.1))
    };
    match plain.char_indices().find(is_foreign) {
        Some((offset, character)) => Err(HostlistError {
            at: at + offset,
            fault: Fault::Character(character),
        }),
        None => Ok(()),
    }
}

/// Expands `01-03,07`; each number is padded to the width of the first number of its range.
fn numbers(at: usize, inside: &str) -> Result<Vec<String>, HostlistError> {
    let mut numbers = Vec::new();
    let mut at = at;
    for range in inside.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let from = number(at, first)?;
        let to = number(at, last)?;
        let fault = |fault| Err(HostlistError { at, fault });
        if to < from {
            return fault(Fault::Backwards);
        }
        if (to - from) as usize >= HOSTS_MAX - numbers.len() {
            return fault(Fault::TooMany);
        }
        numbers.extend((from..=to).map(|number| format!("{number:0width$}", width = first.len())));
        at += range.len() + 1;
    }
    Ok(numbers)
}

fn number(at: usize, text: &str) -> Result<u32, HostlistError> {
    let is_number =
        (1..=DIGITS_MAX).contains(&text.len()) && text.bytes().all(|digit| digit.is_ascii_digit());
    let fault = if text.is_empty() {
        Fault::Missing
    } else {
        Fault::Number
    };
    if !is_number {
        return Err(HostlistError { at, fault });
    }
    text.parse().map_err(|_| HostlistError { at, fault })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lists_stand_for_their_hosts() {
        let cases: [(&str, &[&str]); 9] = [
            ("node1", &["node1"]),
            ("a,b-2.cluster,c_3", &["a", "b-2.cluster", "c_3"]),
            (
                "node[01-03,07],gpu5",
                &["node01", "node02", "node03", "node07", "gpu5"],
            ),
            ("n[8-11]", &["n8", "n9", "n10", "n11"]),
            ("n[098-101]", &["n098", "n099", "n100", "n101"]),
            ("n[5]", &["n5"]),
            ("r[1-2]n[1,3]", &["r1n1", "r1n3", "r2n1", "r2n3"]),
            ("[1-2]-ib.local", &["1-ib.local", "2-ib.local"]),
            ("n[1,1]", &["n1", "n1"]),
        ];
        for (list, hosts) in cases {
            assert_eq!(expand(list).unwrap(), hosts, "{list}");
        }
    }

    #[test]
    fn what_is_no_list_is_refused_where_it_is_wrong() {
        let cases = [
            ("", 0, Fault::Missing),
            ("a,,b", 2, Fault::Missing),
            ("a,", 2, Fault::Missing),
            ("n[]", 2, Fault::Missing),
            ("n[1,]", 4, Fault::Missing),
            ("n[1-]", 2, Fault::Missing),
            ("n[1", 1, Fault::Brackets),
            ("n1]", 2, Fault::Brackets),
            ("n[1[2]]", 3, Fault::Brackets),
            ("a b", 1, Fault::Character(' ')),
            ("a,nöde", 3, Fault::Character('ö')),
            ("host:7000", 4, Fault::Character(':')),
            ("n[a-b]", 2, Fault::Number),
            ("n[1-2-3]", 2, Fault::Number),
            ("n[+1]", 2, Fault::Number),
            ("n[1,1234567890]", 4, Fault::Number),
            ("n[3-2]", 2, Fault::Backwards),
        ];
        for (list, at, fault) in cases {
            assert_eq!(expand(list), Err(HostlistError { at, fault }), "{list}");
        }
    }

    #[test]
    fn what_stands_for_too_much_is_refused_before_it_is_made() {
        assert_eq!(expand("n[1-4096]").unwrap().len(), HOSTS_MAX);
        for list in [
            "n[0-4096]",
            "n[0-999999999]",
            "n[1-65]m[1-64]",
            "n[1-4096],m",
            "n[1-9]m[1-9]o[1-9]p[1-9]",
        ] {
            assert_eq!(expand(list).unwrap_err().fault, Fault::TooMany, "{list}");
        }
        assert_eq!(
            expand(&"a,".repeat(LIST_BYTES_MAX)).unwrap_err().fault,
            Fault::TooLong
        );
        assert_eq!(
            expand(&"a".repeat(NAME_BYTES_MAX + 1)).unwrap_err().fault,
            Fault::TooLong
        );
        assert_eq!(
            expand(&"[1]".repeat(NAME_BYTES_MAX + 1)).unwrap_err().fault,
            Fault::TooLong
        );
        assert_eq!(
            expand(&format!("[1-9]{}[1-9]{}", "a".repeat(200), "a".repeat(100)))
                .unwrap_err()
                .fault,
            Fault::TooLong
        );
    }

    /// Writes numbers as Slurm does, as ranges of one width.
    fn written(prefix: &str, from: u32, count: u32, width: usize) -> (String, Vec<String>) {
        let hosts = (from..from + count)
            .map(|number| format!("{prefix}{number:0width$}"))
            .collect();
        (
            format!("{prefix}[{from:0width$}-{:0width$}]", from + count - 1),
            hosts,
        )
    }

    proptest! {
        #[test]
        fn what_was_written_is_read(
            parts in prop::collection::vec(("[a-z]{1,4}", 0u32..2000, 1u32..50, 1usize..6), 1..6)
        ) {
            let written: Vec<_> = parts
                .iter()
                .map(|(prefix, from, count, width)| written(prefix, *from, *count, *width))
                .collect();
            let list: Vec<&str> = written.iter().map(|(list, _)| list.as_str()).collect();
            let hosts: Vec<String> = written.iter().flat_map(|(_, hosts)| hosts.clone()).collect();
            prop_assert_eq!(expand(&list.join(",")).unwrap(), hosts);
        }

        #[test]
        fn any_text_is_a_bounded_list_or_refused_inside_it(list in "[a-b0-9,\\[\\]\\-é]{0,60}") {
            match expand(&list) {
                Ok(hosts) => prop_assert!(
                    (1..=HOSTS_MAX).contains(&hosts.len()) && hosts.iter().all(
                        |host| !host.contains(['[', ']', ','])
                    )
                ),
                Err(error) => prop_assert!(error.at <= list.len()),
            }
        }
    }
}
