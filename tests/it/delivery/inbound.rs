//! Webhooks that come in.

use forebay::delivery::signature::sign;
use hyper::Method;
use serde_json::json;

use super::{Stage, secret};
use crate::world::client::Client;

#[tokio::test(flavor = "multi_thread")]
async fn a_signed_webhook_becomes_a_message_once_and_any_other_is_refused() {
    let stage = Stage::new().await;
    let (channel, shown) = stage.channel("x", json!({})).await;
    let conversation = stage.tenant.open().await;
    let path = format!("/v1/channels/{channel}/inbound");
    let body = json!({"conversationId": conversation, "text": "from outside"}).to_string();
    let nobody = Client::with(&stage.server, "");
    let now = stage.world.clock.timestamp().millis() / 1_000;
    let call = async |id: &str, seconds: u64, key: &[u8], body: &str| {
        let signature = sign(&[key], (id, seconds), body.as_bytes());
        let seconds = seconds.to_string();
        let headers = [
            ("webhook-id", id),
            ("webhook-timestamp", seconds.as_str()),
            ("webhook-signature", signature.as_str()),
        ];
        nobody.call(Method::POST, &path, &headers, body.to_owned()).await
    };
    let key = secret(&shown);
    let first = call("evt-1", now, &key, &body).await;
    assert_eq!((first.status, &first.json()["duplicate"]), (202, &json!(false)), "{first:?}");
    let again = call("evt-1", now, &key, &body).await;
    assert_eq!((again.status, &again.json()["duplicate"]), (202, &json!(true)), "{again:?}");
    assert_eq!(call("evt-2", now, &[7; 32], &body).await.status, 401);
    assert_eq!(call("evt-2", now - 301, &key, &body).await.status, 401);
    // A minute beyond the bound, because time goes on; the bound itself is tested where time is an argument.
    assert_eq!(call("evt-2", now + 360, &key, &body).await.status, 401);
    assert_eq!(call("evt-2", now, &key, "{}").await.status, 400);
    let unsigned = nobody.post(&path, json!({"conversationId": conversation})).await;
    assert_eq!(unsigned.status, 401);
    let unknown = "/v1/channels/ch_00000000000000000000000000000001/inbound";
    assert_eq!(nobody.post(unknown, json!({})).await.status, 401, "no word of whether it is there");
    let rotated =
        stage.tenant.post(&format!("/v1/channels/{channel}/rotate-secret"), json!({})).await;
    let fresh = secret(rotated.json()["secret"].as_str().unwrap());
    assert_eq!(call("evt-3", now, &fresh, &body).await.status, 202);
    assert_eq!(call("evt-4", now, &key, &body).await.status, 202, "the former one, for a while");
    let page = stage.tenant.get(&format!("/v1/conversations/{conversation}/messages")).await;
    let texts = page.json()["messages"].as_array().unwrap().len();
    assert_eq!(texts, 4, "the opening and three messages: {page:?}");
    stage.server.stop().await;
}
