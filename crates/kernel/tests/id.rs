//! The text form of a ticket's id.

use holdline_kernel::TicketId;
use proptest::prelude::*;

proptest! {
    #[test]
    fn what_is_printed_is_read_back(number: u128) {
        let text = TicketId(number).to_string();
        prop_assert_eq!(text.len(), 32);
        prop_assert_eq!(text.parse(), Ok(TicketId(number)));
        prop_assert_eq!(text.to_uppercase().parse(), Ok(TicketId(number)));
    }

    #[test]
    fn nothing_else_is_read(text in ".{0,40}") {
        let good = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        prop_assert_eq!(text.parse::<TicketId>().is_ok(), good);
    }
}

#[test]
fn a_wrong_text_is_refused_with_a_sentence() {
    let zeros = "0".repeat(31);
    for text in ["", "7", &zeros, &format!("+{zeros}"), &format!("{zeros}g"), &format!("{zeros}00")]
    {
        let error = text.parse::<TicketId>().expect_err("it is no id");
        assert!(error.to_string().contains("32 hexadecimal digits"), "{text:?}: {error}");
    }
    assert_eq!(format!("{zeros}7").parse(), Ok(TicketId(7)));
    assert_eq!(TicketId(0xAB).to_string(), format!("{}ab", "0".repeat(30)));
}
