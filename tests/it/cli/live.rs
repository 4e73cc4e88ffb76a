//! `forebay bench live`: that every client and every delivery is accounted for.

use std::path::Path;

use super::run;

#[tokio::test]
async fn a_small_run_joins_everybody_and_delivers_everything() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("live.json");
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join(".forebay");
    let arguments = [
        "bench",
        "live",
        "--idle=40",
        "--conversations=4",
        "--receivers=10",
        "--messages=10",
        "--pairs=10",
        "--sends-per-second=40",
        "--seconds=1",
        "--storm=20",
        "--data-dir",
        data.to_str().unwrap(),
        "--json",
        file.to_str().unwrap(),
    ];
    let ended = run(&arguments, &[]).await;
    ended.assert_code(0);
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(report["idle"]["connections"], 40);
    for (fan_out, delivered) in report["fanOut"].as_array().unwrap().iter().zip([100, 900]) {
        assert_eq!((&fan_out["delivered"], &fan_out["missing"]), (&delivered.into(), &0.into()));
    }
    for end in ["sent", "acknowledged", "delivered"] {
        assert_eq!(report["pairs"][end], 40, "{report}");
    }
    assert_eq!((&report["storm"]["complete"], &report["storm"]["failed"]), (&20.into(), &0.into()));
    assert_eq!(report["storm"]["acquires"], 0);
    for aim in ["<= 12 KiB", "<= 3", "<= 5 s"] {
        assert!(ended.stdout.contains(aim), "{}", ended.stdout);
    }
}
