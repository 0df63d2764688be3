//! A test that is a program of its own, and what it is asked for on the command line.

/// Goes through the command line. `take` is given each argument and a way to have its value, and says whether it was
/// meant. `false` if other tests are meant. The usual harness's options are passed over, for `cargo test -- …` gives
/// them to all tests.
pub fn is_asked_for(
    program: &str,
    mut take: impl FnMut(&str, &mut dyn FnMut() -> String) -> bool,
) -> bool {
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || {
            let value = arguments.next();
            value.unwrap_or_else(|| panic!("{argument} takes a value"))
        };
        if take(&argument, &mut value) {
            continue;
        }
        match argument.as_str() {
            "--list" => return false,
            "--skip" | "--test-threads" | "--color" | "--format" => drop(arguments.next()),
            option if option.starts_with('-') => {}
            filter if program.contains(filter) => {}
            _ => return false,
        }
    }
    true
}

/// A number, or the end of the program.
pub fn number(option: &str, text: &str) -> u64 {
    let number = text.parse();
    number.unwrap_or_else(|_| panic!("{option} takes a number, not {text}"))
}
