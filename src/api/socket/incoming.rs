//! Pure: a frame of a client, as far as the door reads it.
//! Promises that what is wrong with one is told in words for its author.
//! Does not check what the fields mean; the desk and the flows do.

use serde::Deserialize;
use serde_json::Value;

/// A frame from a client, as far as it is read here. Unknown fields are ignored.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Incoming {
    pub(super) frame: String,
    #[serde(default)]
    pub(super) conversation_id: Option<String>,
    #[serde(default)]
    pub(super) watermark: Option<Value>,
    #[serde(default)]
    pub(super) epoch: Option<String>,
    #[serde(default)]
    pub(super) token: Option<String>,
    #[serde(default)]
    pub(super) capabilities: Option<Vec<String>>,
    #[serde(default)]
    pub(super) client_id: Option<String>,
    #[serde(default)]
    pub(super) is_typing: Option<bool>,
    #[serde(default)]
    pub(super) nonce: Option<Value>,
}

/// A frame that cannot be read.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unread {
    /// In words for the client.
    pub(super) why: String,
    /// Which send it is, if that can be told.
    pub(super) client_id: Option<String>,
}

/// The fields that are strings.
const STRINGS: [&str; 5] = ["frame", "conversationId", "clientId", "epoch", "token"];

impl Incoming {
    /// From JSON.
    ///
    /// # Errors
    /// What is wrong with it, in our own words.
    pub(super) fn read(text: &[u8]) -> Result<Self, Unread> {
        // A list would pass for an object whose fields come in order.
        let is_object = text.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'{');
        let read = serde_json::from_slice(text);
        read.ok().filter(|_| is_object).ok_or_else(|| Self::why_unread(text))
    }

    fn why_unread(text: &[u8]) -> Unread {
        let Ok(value) = serde_json::from_slice::<Value>(text) else {
            return Unread { why: "This is no frame: it is not JSON.".to_owned(), client_id: None };
        };
        let Some(fields) = value.as_object() else {
            let why = "This is no frame: it is not an object.".to_owned();
            return Unread { why, client_id: None };
        };
        let client_id = fields.get("clientId").and_then(|id| id.as_str()).map(str::to_owned);
        let is_wrong = |name: &str| match fields.get(name) {
            None | Some(Value::Null) => name == "frame",
            Some(value) => !value.is_string(),
        };
        let why = if let Some(name) = STRINGS.into_iter().find(|name| is_wrong(name)) {
            format!("The field {name} must be a string.")
        } else if fields
            .get("isTyping")
            .is_some_and(|value| !value.is_boolean() && !value.is_null())
        {
            "The field isTyping must be true or false.".to_owned()
        } else if fields.get("capabilities").is_some_and(|value| !is_list_of_strings(value)) {
            "The field capabilities must be a list of strings.".to_owned()
        } else {
            "A field of the frame is there twice.".to_owned()
        };
        Unread { why, client_id }
    }
}

fn is_list_of_strings(value: &Value) -> bool {
    value.is_null() || value.as_array().is_some_and(|all| all.iter().all(Value::is_string))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_frame_is_told_in_our_own_words() {
        for (text, why, client_id) in [
            ("", "This is no frame: it is not JSON.", None),
            ("{\"frame\": \"ping\"", "This is no frame: it is not JSON.", None),
            ("\"ping\"", "This is no frame: it is not an object.", None),
            (" [\"ping\"]", "This is no frame: it is not an object.", None),
            ("null", "This is no frame: it is not an object.", None),
            ("{}", "The field frame must be a string.", None),
            ("{\"frame\":null,\"clientId\":\"a\"}", "The field frame must be a string.", Some("a")),
            ("{\"frame\":\"m\",\"clientId\":1}", "The field clientId must be a string.", None),
            ("{\"frame\":\"t\",\"isTyping\":1}", "The field isTyping must be true or false.", None),
            (
                "{\"frame\":\"h\",\"capabilities\":\"gaps\"}",
                "The field capabilities must be a list of strings.",
                None,
            ),
            ("{\"frame\":\"m\",\"frame\":\"m\"}", "A field of the frame is there twice.", None),
        ] {
            let client_id = client_id.map(str::to_owned);
            let wanted = Unread { why: why.to_owned(), client_id };
            assert_eq!(Incoming::read(text.as_bytes()).unwrap_err(), wanted, "{text}");
        }
        assert!(Incoming::read(b" {\"frame\":\"x\",\"epoch\":null,\"isTyping\":null}").is_ok());
    }
}
