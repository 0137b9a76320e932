//! What a call is made of, and whether another try makes sense.

use std::time::Duration;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// The longest that a server's `Retry-After` is followed.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// The value of the header `Webhook-Signature`: `t=SECONDS,v1=HEX`, where HEX is the HMAC-SHA256 of `SECONDS.BODY` with the
/// key. The time is signed too, so that a receiver can turn old requests down.
pub(crate) fn signature(key: &str, seconds: u64, body: &[u8]) -> String {
    // HMAC takes a key of any length.
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(key.as_bytes()) else { return String::new() };
    mac.update(format!("{seconds}.").as_bytes());
    mac.update(body);
    let hex: String = mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("t={seconds},v1={hex}")
}

/// Whether a server that answered so may answer otherwise later.
pub(crate) fn may_be_retried(status: u16) -> bool {
    matches!(status, 408 | 425 | 429 | 500..)
}

/// The wait before try number `tries + 1`: twice as long each time, or what the server asks for.
pub(crate) fn wait(first: Duration, tries: u32, retry_after: Option<&str>) -> Duration {
    let own = first.saturating_mul(1 << tries.saturating_sub(1).min(16));
    let asked = retry_after.and_then(|text| text.parse().ok()).map(Duration::from_secs);
    own.max(asked.unwrap_or_default()).min(LONGEST_WAIT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_signature_is_that_of_any_other_tool() {
        // printf '1700000000.{"a":1}' | openssl dgst -sha256 -hmac secret
        let expected = "t=1700000000,v1=49f24e537407743fa4a0242bb63b94b9a47ee99cbbe071ccd8a22550ae411686";
        assert_eq!(signature("secret", 1_700_000_000, br#"{"a":1}"#), expected);
    }

    #[test]
    fn only_what_may_change_is_tried_again() {
        assert!([408, 425, 429, 500, 502, 503, 599].into_iter().all(may_be_retried));
        assert!(![200, 301, 400, 401, 404, 410, 422].into_iter().any(may_be_retried));
    }

    #[test]
    fn waits_double_up_to_a_minute() {
        let waits = [1, 2, 3, 30].map(|tries| wait(Duration::from_millis(500), tries, None).as_millis());
        assert_eq!(waits, [500, 1000, 2000, 60_000]);
        assert_eq!(wait(Duration::from_millis(500), 1, Some("7")), Duration::from_secs(7));
        assert_eq!(wait(Duration::from_millis(500), 1, Some("86400")), Duration::from_secs(60));
        assert_eq!(wait(Duration::from_millis(500), 1, Some("soon")), Duration::from_millis(500));
    }
}
