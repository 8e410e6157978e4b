//! The API's description against what is served: paths and methods, statuses, and answers of each kind against their schemas.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::sim::{Edge, Failure, Sim, ask, id};

fn document() -> Value {
    serde_json::from_str(crate::rest::OPENAPI).unwrap()
}

/// Each path and method of the description is routed, and the other way round.
#[test]
fn the_description_is_of_what_is_served() {
    let document = document();
    assert!(document["openapi"].as_str().unwrap().starts_with("3.1"));
    let mut described: Vec<String> = Vec::new();
    for (path, operations) in document["paths"].as_object().unwrap() {
        for method in ["get", "post", "put", "patch", "delete"] {
            if operations.get(method).is_some() {
                described.push(format!("{} {path}", method.to_uppercase()));
            }
        }
    }
    described.sort();
    let mut served = [
        "GET /v1/status",
        "GET /v1/moves",
        "POST /v1/moves",
        "GET /v1/moves/{id}",
        "DELETE /v1/moves/{id}",
        "GET /v1/hosts",
        "POST /v1/hosts/{name}/anchor",
        "DELETE /v1/hosts/{name}/anchor",
        "GET /v1/ues",
        "GET /v1/ues/{ue}",
        "GET /v1/openapi.json",
    ];
    served.sort_unstable();
    assert_eq!(described, served);
    let source = include_str!("rest.rs");
    let routes = source
        .lines()
        .filter(|line| line.trim_start().starts_with("(\"") && line.contains("[\"v1\", \""))
        .count();
    assert_eq!(routes, served.len(), "a route is not in this list");
    for one in served {
        let (method, path) = one.split_once(' ').unwrap();
        let path = path.replace("{id}", "7").replace("{name}", "edge1").replace("{ue}", "10.45.0.2");
        let body = if one == "POST /v1/moves" { r#"{"ues": ["10.45.0.2"], "to": "edge1"}"# } else { "" };
        let request =
            nf::rest::Request { method: method.into(), path, body: body.into(), ..Default::default() };
        assert!(crate::rest::read(&request).is_ok(), "{one}");
    }
    // References are to what exists, and members of a request are those that are read.
    for part in document.to_string().split("\"#").skip(1) {
        let pointer = part.split('"').next().unwrap();
        assert!(document.pointer(pointer).is_some(), "{pointer}");
    }
    let members = document["components"]["schemas"]["MoveRequest"]["properties"].as_object().unwrap();
    let said = serde_json::from_str::<crate::request::MoveRequest>(r#"{"x": 1}"#).unwrap_err().to_string();
    for member in members.keys() {
        assert!(said.contains(&format!("`{member}`")), "{member}: {said}");
    }
    assert_eq!(said.matches('`').count() / 2 - 1, members.len(), "{said}");
}

/// Reads schemas, as far as the description uses JSON Schema: other keywords are a failure, or must not constrain.
struct Schemas(Value);

impl Schemas {
    /// What a reference stands for.
    fn follow<'a>(&'a self, one: &'a Value) -> &'a Value {
        match one["$ref"].as_str() {
            Some(reference) => self.0.pointer(reference.trim_start_matches('#')).unwrap(),
            None => one,
        }
    }

    /// Members that a schema describes, with those of the schemas that it consists of.
    fn members<'a>(&'a self, schema: &'a Value) -> BTreeMap<&'a str, &'a Value> {
        let own = schema["properties"].as_object().into_iter().flatten();
        let mut all: BTreeMap<&str, &Value> = own.map(|(name, schema)| (name.as_str(), schema)).collect();
        let parts = schema["allOf"].as_array().into_iter().flatten();
        for part in parts.chain(schema.get("$ref").map(|_| self.follow(schema))) {
            all.extend(self.members(part));
        }
        all
    }

    /// What of a value does not fit.
    fn check(&self, schema: &Value, value: &Value, at: &str, wrong: &mut Vec<String>) {
        const KNOWN: [&str; 15] = [
            "$ref",
            "allOf",
            "type",
            "properties",
            "required",
            "items",
            "enum",
            "additionalProperties",
            "unevaluatedProperties",
            "minimum",
            "description",
            "default",
            "minItems",
            "maxItems",
            "maximum",
        ];
        for keyword in schema.as_object().unwrap().keys() {
            assert!(KNOWN.contains(&keyword.as_str()), "the test does not know the keyword {keyword}");
        }
        if schema.get("$ref").is_some() {
            self.check(self.follow(schema), value, at, wrong);
        }
        for part in schema["allOf"].as_array().into_iter().flatten() {
            self.check(part, value, at, wrong);
        }
        let types: Vec<&str> = match &schema["type"] {
            Value::Array(types) => types.iter().filter_map(Value::as_str).collect(),
            one => one.as_str().into_iter().collect(),
        };
        if !types.is_empty() && !types.contains(&kind(value)) {
            wrong.push(format!("{at} is {value}, and no {types:?}"));
        }
        if schema["enum"].as_array().is_some_and(|values| !values.contains(value)) {
            wrong.push(format!("{at} is {value}"));
        }
        if let Some(members) = value.as_object() {
            self.check_members(schema, members, at, wrong);
        }
        for (number, item) in value.as_array().into_iter().flatten().enumerate() {
            if let Some(items) = schema.get("items") {
                self.check(items, item, &format!("{at}/{number}"), wrong);
            }
        }
    }

    fn check_members(&self, schema: &Value, members: &Map<String, Value>, at: &str, wrong: &mut Vec<String>) {
        for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            if !members.contains_key(name) {
                wrong.push(format!("{at} has no {name}"));
            }
        }
        let own = &schema["properties"];
        let known = self.members(schema);
        for (name, member) in members {
            let at = format!("{at}/{name}");
            match (own.get(name), &schema["additionalProperties"]) {
                (Some(schema), _) => self.check(schema, member, &at, wrong),
                (None, Value::Bool(false)) => wrong.push(format!("{at} is not described")),
                (None, schema @ Value::Object(_)) => self.check(schema, member, &at, wrong),
                _ => {}
            }
            if schema["unevaluatedProperties"] == false && !known.contains_key(name.as_str()) {
                wrong.push(format!("{at} is not described"));
            }
        }
    }
}

/// The type of a value, as schemas say it.
fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

#[test]
fn what_does_not_fit_a_schema_is_found() {
    let schemas = Schemas(document());
    let schema = json!({"$ref": "#/components/schemas/Problem"});
    let good = json!({"type": "about:blank", "title": "x", "status": 404, "detail": "y"});
    let wrong = |value: Value| {
        let mut wrong = Vec::new();
        schemas.check(&schema, &value, "", &mut wrong);
        wrong
    };
    assert!(wrong(good.clone()).is_empty());
    let with = |name: &str, value: Value| {
        let mut changed = good.clone();
        changed[name] = value;
        wrong(changed)
    };
    assert_eq!(with("status", json!("404")), ["/status is \"404\", and no [\"integer\"]"]);
    assert_eq!(with("more", json!(1)), ["/more is not described"]);
    assert_eq!(wrong(json!({"type": "", "title": "", "status": 1})), [" has no detail"]);
}

/// Answers to each operation, good and bad, have the described statuses and the members of their schemas, no more and no fewer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_are_as_described() {
    let sim = Sim::new(Edge::with_users(60)).await;
    let schemas = Schemas(document());
    sim.change(|edge| edge.users.get_mut(&3).unwrap().base_station = None);
    let orchestrator = sim.orchestrator().await;
    let mut seen: BTreeMap<String, Vec<u16>> = BTreeMap::new();
    let mut check = async |method: &str, path: &str, template: &str, body: Option<Value>| {
        if let Some(body) = body.as_ref().filter(|body| body.get("no_schema").is_none()) {
            let mut wrong = Vec::new();
            schemas.check(&json!({"$ref": "#/components/schemas/MoveRequest"}), body, "request", &mut wrong);
            assert!(wrong.is_empty(), "{wrong:?}");
        }
        let answer = ask(&orchestrator, method, path, body).await;
        let name = format!("{method} {template}");
        let described = &schemas.0["paths"][template][method.to_lowercase()]["responses"];
        let response = schemas.follow(&described[answer.status.to_string()]);
        let kind = if answer.status < 400 { "application/json" } else { "application/problem+json" };
        let schema = &response["content"][kind]["schema"];
        assert!(schema.is_object(), "{name}: {} is not described: {}", answer.status, answer.body);
        let mut wrong = Vec::new();
        schemas.check(schema, &answer.body, "", &mut wrong);
        assert!(wrong.is_empty(), "{name}: {}: {wrong:?}", answer.status);
        assert_eq!(answer.location.is_some(), response["headers"]["Location"].is_object(), "{name}");
        seen.entry(name).or_default().push(answer.status);
    };
    for (method, template) in [
        ("GET", "/v1/status"),
        ("GET", "/v1/moves"),
        ("GET", "/v1/hosts"),
        ("GET", "/v1/ues"),
        ("GET", "/v1/openapi.json"),
    ] {
        check(method, template, template, None).await;
    }
    // 400, 404, 413: nothing is begun.
    let moves = "/v1/moves";
    for body in [
        json!({"to": "edge1"}),
        json!({"no_schema": 1}),
        json!({"ues": ["10.45.9.9"], "to": "edge1"}),
        json!({"ues": vec!["10.45.0.2"; 10_001], "to": "edge1"}),
    ] {
        check("POST", moves, moves, Some(body)).await;
    }
    // A move that waits, and one in its way; then it is undone.
    sim.fail(0, 1000, Failure::Refused503);
    check("POST", moves, moves, Some(json!({"ues": [id(2)], "to": "edge1"}))).await;
    check("POST", moves, moves, Some(json!({"ues": [id(2)], "to": "edge2"}))).await;
    let (one, move_path) = ("/v1/moves/{id}", "/v1/moves/1");
    check("GET", "/v1/moves/x", one, None).await;
    check("GET", "/v1/moves/1?wait=x", one, None).await;
    check("GET", "/v1/moves/77", one, None).await;
    check("GET", move_path, one, None).await;
    check("DELETE", move_path, one, None).await;
    sim.fail(0, 0, Failure::Refused503);
    check("GET", "/v1/moves/1?wait=20", one, None).await;
    check("DELETE", move_path, one, None).await;
    check("DELETE", "/v1/moves/x", one, None).await;
    check("DELETE", "/v1/moves/77", one, None).await;
    // All fates but `pending`: moved, idle, and one who stays.
    let some = json!({"ues": [id(2), id(3), "10.45.9.9"], "to": "edge1", "follow": true, "from": null});
    check("POST", "/v1/moves?wait=20", moves, Some(some)).await;
    check("POST", "/v1/moves?wait=20", moves, Some(json!({"ues": [id(4)], "to": "edge1", "warm": true})))
        .await;
    let (users, user) = ("/v1/ues", "/v1/ues/{ue}");
    check("GET", users, users, None).await;
    check("GET", &format!("/v1/ues/{}", id(2)), user, None).await;
    check("GET", "/v1/ues/10.45.9.9", user, None).await;
    check("GET", "/v1/ues/%", user, None).await;
    check("GET", moves, moves, None).await;
    check("GET", "/v1/hosts", "/v1/hosts", None).await;
    let anchor = "/v1/hosts/{name}/anchor";
    for method in ["POST", "DELETE"] {
        check(method, "/v1/hosts/edge9/anchor", anchor, None).await;
        check(method, "/v1/hosts/%/anchor", anchor, None).await;
    }
    check("POST", "/v1/hosts/edge1/anchor", anchor, None).await;
    check("DELETE", "/v1/hosts/edge1/anchor", anchor, None).await;
    for path in ["/v1/moves", "/v1/ues/x", "/v1/hosts/edge1/anchor"] {
        assert_eq!(ask(&orchestrator, "PUT", path, None).await.status, 405, "{path}");
    }
    assert_eq!(ask(&orchestrator, "GET", "/v1/nothing", None).await.status, 404);
    for (path, operations) in schemas.0["paths"].as_object().unwrap() {
        for method in operations.as_object().unwrap().keys() {
            let name = format!("{} {path}", method.to_uppercase());
            assert!(seen.contains_key(&name), "{name} is not tried");
        }
    }
    assert_eq!(seen["POST /v1/moves"], [400, 400, 404, 413, 202, 409, 201, 201]);
}
