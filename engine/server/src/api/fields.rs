//! Reads a request's fields one by one, so that every mistake is told with the field's name, its value and what is allowed.
//!
//! `null` counts as not given, everywhere: many clients send all fields they know. Fields that nobody asks for are ignored, as OpenAI
//! does.

use serde_json::{Map, Value};

use super::error::ApiError;

/// The longest value that a message repeats, in characters.
const MOST_REPEATED: usize = 80;

/// An object and where it is in the request.
#[derive(Clone, Copy, Debug)]
pub struct Fields<'a> {
    map: &'a Map<String, Value>,
    /// Empty, or a path with a point at the end.
    prefix: &'a str,
}

impl<'a> Fields<'a> {
    /// The fields of the object `value`, called `name` (empty: the request itself).
    pub fn of(value: &'a Value, prefix: &'a str) -> Result<Fields<'a>, ApiError> {
        match value.as_object() {
            Some(map) => Ok(Fields { map, prefix }),
            None if prefix.is_empty() => {
                Err(ApiError::field_of(None, format!("the body is {}, expected a JSON object", shown(value))))
            }
            None => Err(wrong(prefix.trim_end_matches('.'), value, "an object")),
        }
    }

    /// The full name of a field.
    pub fn name(&self, field: &str) -> String {
        format!("{}{field}", self.prefix)
    }

    /// A field's value unless it is missing or null.
    pub fn get(&self, field: &str) -> Option<&'a Value> {
        self.map.get(field).filter(|value| !value.is_null())
    }

    /// The fault that a field is not what it should be.
    pub fn wrong(&self, field: &str, expected: &str) -> ApiError {
        match self.get(field) {
            Some(value) => wrong(&self.name(field), value, expected),
            None => self.missing(field, expected),
        }
    }

    /// The fault that a field is not there.
    pub fn missing(&self, field: &str, expected: &str) -> ApiError {
        let name = self.name(field);
        ApiError::field(name.clone(), format!("{name} is missing, expected {expected}"))
    }

    /// A switch.
    pub fn switch(&self, field: &str) -> Result<Option<bool>, ApiError> {
        self.parse(field, "true or false", Value::as_bool)
    }

    /// A text.
    pub fn text(&self, field: &str) -> Result<Option<&'a str>, ApiError> {
        self.parse(field, "a string", Value::as_str)
    }

    /// A list.
    pub fn list(&self, field: &str) -> Result<Option<&'a Vec<Value>>, ApiError> {
        self.parse(field, "a list", Value::as_array)
    }

    /// A number in a range.
    pub fn number(&self, field: &str, least: f64, most: f64) -> Result<Option<f64>, ApiError> {
        let expected = format!("a number from {least} to {most}");
        self.parse(field, &expected, |value| value.as_f64().filter(|n| (least..=most).contains(n)))
    }

    /// A whole number in a range. `3.0` is one: some languages know no other.
    pub fn whole(&self, field: &str, least: i64, most: i64) -> Result<Option<i64>, ApiError> {
        let expected = format!("a whole number from {least} to {most}");
        self.parse(field, &expected, |value| {
            let whole = value.as_i64().or_else(|| {
                let number = value.as_f64()?;
                (number.fract() == 0.0 && number.abs() < 9e15).then_some(number as i64)
            });
            whole.filter(|n| (least..=most).contains(n))
        })
    }

    /// What `parse` makes of a field.
    pub fn parse<T>(
        &self,
        field: &str,
        expected: &str,
        parse: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, ApiError> {
        match self.get(field) {
            None => Ok(None),
            Some(value) => parse(value).map(Some).ok_or_else(|| wrong(&self.name(field), value, expected)),
        }
    }
}

impl ApiError {
    fn field_of(param: Option<String>, message: String) -> ApiError {
        ApiError { param, ..ApiError::field("", message) }
    }
}

/// The fault that `name` is not what it should be.
pub fn wrong(name: &str, found: &Value, expected: &str) -> ApiError {
    ApiError::field(name, format!("{name} is {}, expected {expected}", shown(found)))
}

/// A value for a message: small ones as they are, others by their kind.
fn shown(value: &Value) -> String {
    match value {
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
        other => {
            let text = other.to_string();
            match text.char_indices().nth(MOST_REPEATED) {
                Some((end, _)) => format!("{}…", &text[..end]),
                None => text,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn null_is_as_good_as_missing() {
        let value = json!({"n": null});
        let fields = Fields::of(&value, "").expect("an object");
        assert_eq!(fields.whole("n", 1, 4).expect("fine"), None);
        assert_eq!(fields.whole("m", 1, 4).expect("fine"), None);
    }

    #[test]
    fn a_whole_number_may_be_written_with_a_point() {
        let value = json!({"a": 3.0, "b": 3.5, "c": 1e300});
        let fields = Fields::of(&value, "").expect("an object");
        assert_eq!(fields.whole("a", 1, 4).expect("fine"), Some(3));
        assert!(fields.whole("b", 1, 4).is_err());
        assert!(fields.whole("c", 1, 4).is_err());
    }

    #[test]
    fn faults_name_field_value_and_range() {
        let value = json!({"temperature": "hot", "top_p": 7});
        let fields = Fields::of(&value, "options.").expect("an object");
        let error = fields.number("temperature", 0.0, 2.0).expect_err("no number");
        assert_eq!(error.message, r#"options.temperature is "hot", expected a number from 0 to 2"#);
        assert_eq!(error.param.as_deref(), Some("options.temperature"));
        assert!(fields.number("top_p", 0.0, 1.0).is_err());
        assert_eq!(
            Fields::of(&json!([1]), "").expect_err("no object").message,
            "the body is a list, expected a JSON object"
        );
    }
}
