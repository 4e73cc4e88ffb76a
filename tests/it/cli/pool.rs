//! `forebay bench pool`: that every contestant has its row and every request is accounted for.

use std::path::Path;

use super::run;

#[tokio::test]
async fn a_comparison_of_pools_has_a_row_for_each_and_loses_no_request() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("pool.json");
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join(".forebay");
    let arguments = [
        "bench",
        "pool",
        "--compare",
        "--rate=200",
        "--seconds=1",
        "--connections=4",
        "--clients=8",
        "--data-dir",
        data.to_str().unwrap(),
        "--json",
        file.to_str().unwrap(),
    ];
    let ended = run(&arguments, &[]).await;
    ended.assert_code(0);
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let measured = report["measured"].as_array().unwrap();
    assert_eq!(measured.len(), 3);
    for (figures, name) in measured.iter().zip(["forebay", "sqlx::PgPool", "PgBouncer"]) {
        assert!(ended.stdout.contains(&format!("\n| {name}")), "{}", ended.stdout);
        let count = |what: &str| figures[what].as_u64().unwrap();
        let ends = ["ok", "late", "refused", "errors", "shed"].map(count);
        assert_eq!(count("sent"), 200, "{figures}");
        assert_eq!(ends.iter().sum::<u64>(), 200, "{figures}");
        assert!(ends[0] > 0, "{figures}");
        assert!(count("sessionsOpened") >= 1 && count("backendsPeak") >= 1, "{figures}");
    }
}
