//! A chat request's messages and tools, in the model's own terms.

use model::chat::{Message, ToolCall};
use serde_json::{Map, Value};

use super::error::ApiError;
use super::fields::{Fields, wrong};

/// Messages of one request at most.
const MOST_MESSAGES: usize = 10_000;
/// Tools of one request at most.
const MOST_TOOLS: usize = 512;

/// Reads `messages`.
///
/// OpenAI's `developer` is a newer word for `system` (the model's own developer messages are something else). Results of tools are put
/// into the order of their calls, which is how the model tells them apart. An answer of the assistant cannot be the last message: the
/// model would have nothing to say. Instructions at the very end are a user's turn to it, since it answers only those.
///
/// # Errors
/// The first message that makes no sense.
pub fn messages(request: &Fields<'_>) -> Result<Vec<Message>, ApiError> {
    let list = request.list("messages")?.ok_or_else(|| request.missing("messages", "a list of messages"))?;
    if list.is_empty() || list.len() > MOST_MESSAGES {
        let message = format!("messages has {} entries, expected 1 to {MOST_MESSAGES}", list.len());
        return Err(ApiError::field("messages", message));
    }
    let mut messages = Vec::with_capacity(list.len());
    let mut open = Calls::default();
    for (index, value) in list.iter().enumerate() {
        let prefix = format!("messages.{index}.");
        let fields = Fields::of(value, &prefix)?;
        let role = fields.text("role")?.ok_or_else(|| fields.missing("role", "a string"))?;
        if role == "tool" {
            let id = fields.text("tool_call_id")?.ok_or_else(|| fields.missing("tool_call_id", "a string"))?;
            let Some(result) = open.waiting(id) else {
                let name = fields.name("tool_call_id");
                let message =
                    format!("{name} is {id:?}, which is no call of the assistant message before it without a result");
                return Err(ApiError::field(name, message));
            };
            *result = Some(content(&fields)?.unwrap_or_default());
            messages.extend(open.complete());
            continue;
        }
        if let Some(missing) = open.missing() {
            let message = format!("messages.{index} comes before the result of tool call {missing:?}");
            return Err(ApiError::field(format!("messages.{index}"), message));
        }
        let message = match role {
            "system" | "developer" => Message::System { content: needed(&fields)? },
            "user" => Message::User { content: needed(&fields)? },
            "assistant" => assistant(&fields, &mut open)?,
            _ => return Err(fields.wrong("role", "system, developer, user, assistant or tool")),
        };
        messages.push(message);
    }
    if let Some(missing) = open.missing() {
        let message = format!("the result of tool call {missing:?} is missing at the end of messages");
        return Err(ApiError::field("messages", message));
    }
    if let Some(Message::System { content }) = messages.pop_if(|last| matches!(last, Message::System { .. })) {
        messages.push(Message::User { content });
    }
    match messages.last() {
        Some(Message::User { .. } | Message::Tool { .. }) => Ok(messages),
        Some(last) => {
            let message = format!("the last message has role {}, expected user or tool", last.role());
            Err(ApiError::field("messages", message))
        }
        None => Err(ApiError::field("messages", "messages is empty")),
    }
}

/// The calls of the latest assistant message, by their ids, and the results that have come.
#[derive(Default)]
struct Calls {
    calls: Vec<(String, Option<String>)>,
}

impl Calls {
    /// Where the result of that call goes, if it has none yet.
    fn waiting(&mut self, id: &str) -> Option<&mut Option<String>> {
        self.calls.iter_mut().find(|(call, result)| call == id && result.is_none()).map(|(_, result)| result)
    }

    /// The first call without a result.
    fn missing(&self) -> Option<&str> {
        self.calls.iter().find(|(_, result)| result.is_none()).map(|(id, _)| id.as_str())
    }

    /// The results in the order of the calls, once all are there.
    fn complete(&mut self) -> Vec<Message> {
        if self.missing().is_some() {
            return Vec::new();
        }
        self.calls.drain(..).filter_map(|(_, content)| Some(Message::Tool { content: content? })).collect()
    }
}

fn needed(fields: &Fields<'_>) -> Result<String, ApiError> {
    content(fields)?.ok_or_else(|| fields.missing("content", "a string or a list of text parts"))
}

/// A text, or a list of parts that are texts.
fn content(fields: &Fields<'_>) -> Result<Option<String>, ApiError> {
    const EXPECTED: &str = "a string or a list of text parts";
    let parts = match fields.get("content") {
        None => return Ok(None),
        Some(Value::String(text)) => return Ok(Some(text.clone())),
        Some(Value::Array(parts)) => parts,
        Some(_) => return Err(fields.wrong("content", EXPECTED)),
    };
    let mut text = String::new();
    for (index, part) in parts.iter().enumerate() {
        if let Some(part) = part.as_str() {
            text.push_str(part);
            continue;
        }
        let prefix = format!("{}.{index}.", fields.name("content"));
        let part = Fields::of(part, &prefix)?;
        match part.text("type")? {
            Some("text" | "input_text" | "output_text" | "refusal") | None => {}
            Some(kind) => {
                let message = format!("{} is {kind:?}; this model reads text only", part.name("type"));
                return Err(ApiError::unsupported(part.name("type"), message));
            }
        }
        let piece = part.text("text")?.or(part.text("refusal")?);
        text.push_str(piece.ok_or_else(|| part.missing("text", "a string"))?);
    }
    Ok(Some(text))
}

fn assistant(fields: &Fields<'_>, open: &mut Calls) -> Result<Message, ApiError> {
    let reasoning = match fields.text("reasoning_content")? {
        Some(text) => Some(text),
        None => fields.text("reasoning")?,
    };
    if fields.get("function_call").is_some() {
        return Err(ApiError::unsupported(
            fields.name("function_call"),
            "function_call is out of use; give tool_calls",
        ));
    }
    let mut tool_calls = Vec::new();
    for (index, call) in fields.list("tool_calls")?.into_iter().flatten().enumerate() {
        let prefix = format!("{}.{index}.", fields.name("tool_calls"));
        let call = Fields::of(call, &prefix)?;
        let id = call.text("id")?.filter(|id| !id.is_empty()).ok_or_else(|| call.missing("id", "a string"))?;
        if open.waiting(id).is_some() {
            return Err(ApiError::field(
                call.name("id"),
                format!("{} is {id:?}, as in a call before", call.name("id")),
            ));
        }
        open.calls.push((id.to_owned(), None));
        tool_calls.push(tool_call(&call)?);
    }
    let content = content(fields)?;
    if content.is_none() && tool_calls.is_empty() && reasoning.is_none() {
        return Err(fields.missing("content", "a string, or tool_calls"));
    }
    Ok(Message::Assistant { reasoning: reasoning.map(str::to_owned), content: content.unwrap_or_default(), tool_calls })
}

fn tool_call(call: &Fields<'_>) -> Result<ToolCall, ApiError> {
    if call.text("type")?.is_some_and(|kind| kind != "function") {
        return Err(call.wrong("type", "\"function\""));
    }
    let prefix = call.name("function.");
    let function = call.get("function").ok_or_else(|| call.missing("function", "an object"))?;
    let function = Fields::of(function, &prefix)?;
    let name = function.text("name")?.ok_or_else(|| function.missing("name", "a string"))?.to_owned();
    let expected = "a JSON object written as a string";
    let arguments = match function.get("arguments") {
        None => Map::new(),
        Some(Value::Object(map)) => map.clone(),
        Some(Value::String(text)) if text.trim().is_empty() => Map::new(),
        Some(Value::String(text)) => match serde_json::from_str(text) {
            Ok(Value::Object(map)) => map,
            // What a model wrote, cut off perhaps; its client hands it back to be told so. DeepSeek's own encoding does the same.
            _ => Map::from_iter([("arguments".to_owned(), text.as_str().into())]),
        },
        Some(_) => return Err(function.wrong("arguments", expected)),
    };
    Ok(ToolCall { name, arguments })
}

/// Which tools the model may or must call.
#[derive(Clone, Debug, PartialEq)]
pub enum ToolChoice {
    /// None; tools are not shown to it.
    None,
    /// As it likes.
    Auto,
    /// At least one.
    Required,
    /// This one, by its place in the list.
    Named(usize),
}

/// Reads `tools` and `tool_choice`. The tools come in OpenAI's form.
///
/// # Errors
/// A tool that is none, a choice that is not among them.
pub fn tools(request: &Fields<'_>) -> Result<(Vec<Value>, ToolChoice), ApiError> {
    for old in ["functions", "function_call"] {
        if request.get(old).is_some() {
            return Err(ApiError::unsupported(old, format!("{old} is out of use; give tools and tool_choice")));
        }
    }
    let tools = request.list("tools")?.cloned().unwrap_or_default();
    if tools.len() > MOST_TOOLS {
        return Err(ApiError::field(
            "tools",
            format!("tools has {} entries, at most {MOST_TOOLS} are taken", tools.len()),
        ));
    }
    let mut names = Vec::new();
    for (index, tool) in tools.iter().enumerate() {
        let prefix = format!("tools.{index}.");
        let fields = Fields::of(tool, &prefix)?;
        if fields.text("type")?.is_some_and(|kind| kind != "function") {
            return Err(fields.wrong("type", "\"function\""));
        }
        let prefix = fields.name("function.");
        let function = fields.get("function").ok_or_else(|| fields.missing("function", "an object"))?;
        let function = Fields::of(function, &prefix)?;
        let name = function.text("name")?.ok_or_else(|| function.missing("name", "a string"))?;
        if name.is_empty() || name.len() > 256 || name.contains(['"', '<', '>', '\n', '｜']) {
            return Err(function.wrong("name", "a name without quotation marks, brackets and line ends"));
        }
        if let Some(parameters) = function.get("parameters").filter(|p| !p.is_object()) {
            return Err(wrong(&function.name("parameters"), parameters, "a JSON schema"));
        }
        names.push(name.to_owned());
    }
    let expected = "none, auto, required or {\"type\": \"function\", \"function\": {\"name\": …}}";
    let choice = match request.get("tool_choice") {
        None => ToolChoice::Auto,
        Some(Value::String(word)) => match word.as_str() {
            "none" => ToolChoice::None,
            "auto" => ToolChoice::Auto,
            "required" | "any" => ToolChoice::Required,
            _ => return Err(request.wrong("tool_choice", expected)),
        },
        Some(choice) => {
            let name = choice.pointer("/function/name").and_then(Value::as_str);
            let name = name.ok_or_else(|| request.wrong("tool_choice", expected))?;
            let place = names.iter().position(|known| known == name);
            ToolChoice::Named(place.ok_or_else(|| {
                ApiError::field("tool_choice", format!("tool_choice names {name:?}, which is not among the tools"))
            })?)
        }
    };
    match choice {
        ToolChoice::Required if tools.is_empty() => {
            Err(ApiError::field("tool_choice", "tool_choice is required, but there are no tools"))
        }
        ToolChoice::None => Ok((Vec::new(), ToolChoice::None)),
        _ if tools.is_empty() => Ok((tools, ToolChoice::None)),
        choice => Ok((tools, choice)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(messages: Value) -> Result<Vec<Message>, ApiError> {
        super::messages(&Fields::of(&json!({ "messages": messages }), "").expect("an object"))
    }

    fn refused(messages: Value) -> (String, String) {
        let error = read(messages).expect_err("it is refused");
        (error.param.unwrap_or_default(), error.message)
    }

    #[test]
    fn parts_are_one_text() {
        let read = read(json!([
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Is "}, {"type": "text", "text": "7 prime?"}]},
        ]));
        let expected =
            [Message::System { content: "Be brief.".into() }, Message::User { content: "Is 7 prime?".into() }];
        assert_eq!(read.expect("sound"), expected);
    }

    #[test]
    fn results_are_put_into_the_order_of_their_calls() {
        let call =
            |id: &str| json!({"id": id, "type": "function", "function": {"name": id, "arguments": "{\"x\": 1}"}});
        let read = read(json!([
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": null, "reasoning_content": "hm", "tool_calls": [call("a"), call("b")]},
            {"role": "tool", "tool_call_id": "b", "content": "B"},
            {"role": "tool", "tool_call_id": "a", "content": "A"},
        ]))
        .expect("sound");
        assert_eq!(read[2..], [Message::Tool { content: "A".into() }, Message::Tool { content: "B".into() }]);
        let Message::Assistant { reasoning, tool_calls, .. } = &read[1] else { panic!("an assistant's") };
        assert_eq!((reasoning.as_deref(), tool_calls[1].name.as_str()), (Some("hm"), "b"));
    }

    #[test]
    fn ids_may_be_used_again_in_a_later_turn() {
        let call = json!([{"id": "a", "function": {"name": "f", "arguments": ""}}]);
        let read = read(json!([
            {"role": "user", "content": "go"},
            {"role": "assistant", "tool_calls": call}, {"role": "tool", "tool_call_id": "a", "content": "1"},
            {"role": "assistant", "tool_calls": call}, {"role": "tool", "tool_call_id": "a", "content": "2"},
        ]))
        .expect("sound");
        assert_eq!(read[2], Message::Tool { content: "1".into() });
        assert_eq!(read[4], Message::Tool { content: "2".into() });
    }

    #[test]
    fn instructions_at_the_end_are_answered() {
        for role in ["system", "developer"] {
            let read = read(json!([{"role": "user", "content": "hi"}, {"role": role, "content": "Be brief."}]));
            assert_eq!(read.expect("sound")[1], Message::User { content: "Be brief.".into() });
        }
    }

    #[test]
    fn arguments_that_are_no_json_are_passed_on() {
        for text in ["{\"city\": \"Ly", "[1]"] {
            let call = json!([{"id": "a", "function": {"name": "f", "arguments": text}}]);
            let read = read(json!([
                {"role": "user", "content": "go"},
                {"role": "assistant", "tool_calls": call}, {"role": "tool", "tool_call_id": "a", "content": "no JSON"},
            ]))
            .expect("sound");
            let Message::Assistant { tool_calls, .. } = &read[1] else { panic!("an assistant's") };
            assert_eq!(Value::from(tool_calls[0].arguments.clone()), json!({"arguments": text}));
        }
    }

    #[test]
    fn faults_name_their_place() {
        let user = json!({"role": "user", "content": "x"});
        for (messages, param) in [
            (json!([]), "messages"),
            (json!("hello"), "messages"),
            (json!([user, 3]), "messages.1"),
            (json!([{"content": "x"}]), "messages.0.role"),
            (json!([{"role": "bot", "content": "x"}]), "messages.0.role"),
            (json!([{"role": "user"}]), "messages.0.content"),
            (json!([{"role": "user", "content": 7}]), "messages.0.content"),
            (json!([{"role": "user", "content": [{"type": "image_url"}]}]), "messages.0.content.0.type"),
            (json!([user, {"role": "assistant", "content": "y"}]), "messages"),
            (json!([user, {"role": "tool", "tool_call_id": "a", "content": ""}]), "messages.1.tool_call_id"),
            (
                json!([user, {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": [1]}}]}]),
                "messages.1.tool_calls.0.function.arguments",
            ),
            (
                json!([user, {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f"}}]}, user]),
                "messages.2",
            ),
        ] {
            assert_eq!(refused(messages).0, param);
        }
        let none = super::messages(&Fields::of(&json!({}), "").expect("an object")).expect_err("nothing there");
        assert_eq!(none.message, "messages is missing, expected a list of messages");
    }

    #[test]
    fn choices_of_tools() {
        let f = json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}});
        let choose = |tools: Value, choice: Value| {
            let request = json!({"tools": tools, "tool_choice": choice});
            tools_of(&request).map(|(tools, choice)| (tools.len(), choice))
        };
        assert_eq!(choose(json!([f]), json!(null)).expect("sound"), (1, ToolChoice::Auto));
        assert_eq!(choose(json!([f]), json!("none")).expect("sound"), (0, ToolChoice::None));
        assert_eq!(choose(json!([f]), json!("required")).expect("sound"), (1, ToolChoice::Required));
        let named = json!({"type": "function", "function": {"name": "f"}});
        assert_eq!(choose(json!([f]), named.clone()).expect("sound"), (1, ToolChoice::Named(0)));
        assert_eq!(choose(json!([]), json!("auto")).expect("sound"), (0, ToolChoice::None));
        assert!(choose(json!([]), json!("required")).is_err());
        assert!(choose(json!([]), named).is_err());
        assert!(choose(json!([f]), json!("sometimes")).is_err());
        assert!(choose(json!([{"type": "retrieval"}]), json!(null)).is_err());
    }

    fn tools_of(request: &Value) -> Result<(Vec<Value>, ToolChoice), ApiError> {
        super::tools(&Fields::of(request, "").expect("an object"))
    }
}
