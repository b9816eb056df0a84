//! The literal strings of DeepSeek-V3.2's prompt format.
//!
//! Source: `encoding/encoding_dsv32.py` and its test files in the model's release (deepseek-ai/DeepSeek-V3.2), copyright (c) 2025
//! DeepSeek, MIT licence. They are what the model was trained on, so every byte counts. Copies of that file in other programs have
//! lost the blank lines of the tool section; the release's expected outputs have them.

/// Begins every prompt.
pub const BEGIN: &str = "<｜begin▁of▁sentence｜>";
/// Ends every assistant message.
pub const END: &str = "<｜end▁of▁sentence｜>";
/// Before a user's text.
pub const USER: &str = "<｜User｜>";
/// After a user's text: the assistant's turn.
pub const ASSISTANT: &str = "<｜Assistant｜>";
/// Opens reasoning.
pub const THINK: &str = "<think>";
/// Closes reasoning, or says that there is none.
pub const END_THINK: &str = "</think>";
/// Marks every tag of the tool markup: `<｜DSML｜invoke …>`.
pub const DSML: &str = "｜DSML｜";

/// Where [`TOOLS`] takes the tools, one JSON schema a line.
pub(super) const TOOLS_SLOT: &str = "{tool_schemas}";

/// Follows the system text when there are tools.
pub(super) const TOOLS: &str = r#"## Tools

You have access to a set of tools you can use to answer the user's question.
You can invoke functions by writing a "<｜DSML｜function_calls>" block like the following as part of your reply to the user:
<｜DSML｜function_calls>
<｜DSML｜invoke name="$FUNCTION_NAME">
<｜DSML｜parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</｜DSML｜parameter>
...
</｜DSML｜invoke>
<｜DSML｜invoke name="$FUNCTION_NAME2">
...
</｜DSML｜invoke>
</｜DSML｜function_calls>

String and scalar parameters should be specified as is without any escaping or quotes, while lists and objects should use JSON format. The "string" attribute should be set to "true" for string type parameters and "false" for other types (numbers, booleans, arrays, objects).

If the thinking_mode is enabled, then after function results you should strongly consider outputting a thinking block. Here is an example:

<｜DSML｜function_calls>
...
</｜DSML｜function_calls>

<function_results>
...
</function_results>

<think>...thinking about results</think>

Here are the functions available in JSONSchema format:
<functions>
{tool_schemas}
</functions>
"#;

/// Between two sections of a system text.
pub(super) const BLANK_LINE: &str = "\n\n";
/// Comes before the JSON schema that an answer must follow.
pub(super) const RESPONSE_FORMAT: &str =
    "## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n";
/// Comes before a developer's text.
pub(super) const DEVELOPER: &str = "\n\n# The user's message is: ";

/// Opens the results of one assistant message's calls.
pub(super) const RESULTS: &str = "\n\n<function_results>";
/// Closes them.
pub(super) const END_RESULTS: &str = "\n</function_results>";
/// Opens one result.
pub(super) const RESULT: &str = "\n<result>";
/// Closes it.
pub(super) const END_RESULT: &str = "</result>";
