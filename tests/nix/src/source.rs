//! Nix files as texts: which there are, their format, and names in them that nobody uses. None of this needs Nix.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use alejandra::format::{Status, in_memory};
use rnix::{SyntaxKind, SyntaxNode};

/// Every `.nix` file below a folder, in order; build folders and hidden ones left out, and links not followed.
///
/// # Errors
/// A folder that cannot be read.
pub fn nix_files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            let (path, kind) = (entry.path(), entry.file_type()?);
            let name = entry.file_name();
            if kind.is_dir() && name != "target" && name != "node_modules" && !name.as_encoded_bytes().starts_with(b".")
            {
                folders.push(path);
            } else if kind.is_file() && path.extension().is_some_and(|extension| extension == "nix") {
                files.push(path);
            }
        }
    }
    files.sort();
    Ok(files)
}

/// The text in the project's format, which is Alejandra's.
///
/// # Errors
/// The first mistake in its syntax.
pub fn formatted(path: &Path, text: &str) -> Result<String, String> {
    if let Some(error) = rnix::Root::parse(text).errors().first() {
        return Err(error.to_string());
    }
    match in_memory(path.display().to_string(), text.into()) {
        (Status::Error(error), _) => Err(error),
        (Status::Changed(_), text) => Ok(text),
    }
}

/// Names that a `let` or a function's argument binds and nothing in its scope mentions, with their lines. A name that begins with an underscore is
/// meant to be unused, and so are those of a pattern without dots: they say what may be passed. A name that an inner scope binds again counts
/// as used, so what is listed here is unused for certain.
pub fn unused_names(text: &str) -> Vec<(usize, String)> {
    let root = rnix::Root::parse(text).syntax();
    let mut unused = BTreeSet::new();
    for node in root.descendants() {
        for name in bound(&node) {
            let text_of = name.text().to_string();
            if !text_of.starts_with('_') && !used(&node, &text_of) {
                let start = usize::from(name.text_range().start());
                unused.insert((text[..start].matches('\n').count() + 1, text_of));
            }
        }
    }
    unused.into_iter().collect()
}

fn children(node: &SyntaxNode, kind: SyntaxKind) -> impl Iterator<Item = SyntaxNode> {
    node.children().filter(move |child| child.kind() == kind)
}

/// The identifiers by which this very node binds something in all of itself.
fn bound(node: &SyntaxNode) -> Vec<SyntaxNode> {
    let identifiers = |node: SyntaxNode| children(&node, SyntaxKind::NODE_IDENT).collect::<Vec<_>>();
    match node.kind() {
        SyntaxKind::NODE_LET_IN => {
            let values = children(node, SyntaxKind::NODE_ATTRPATH_VALUE);
            let paths = values.flat_map(|value| children(&value, SyntaxKind::NODE_ATTRPATH).collect::<Vec<_>>());
            let first =
                paths.filter_map(|path| path.first_child()).filter(|name| name.kind() == SyntaxKind::NODE_IDENT);
            let inherited = children(node, SyntaxKind::NODE_INHERIT).flat_map(identifiers);
            first.chain(inherited).collect()
        }
        SyntaxKind::NODE_LAMBDA => {
            let simple = children(node, SyntaxKind::NODE_IDENT_PARAM).flat_map(identifiers);
            let patterns: Vec<_> = children(node, SyntaxKind::NODE_PATTERN).collect();
            let open = |pattern: &&SyntaxNode| {
                pattern.children_with_tokens().any(|child| child.kind() == SyntaxKind::TOKEN_ELLIPSIS)
            };
            let entries =
                patterns.iter().filter(open).flat_map(|pattern| children(pattern, SyntaxKind::NODE_PAT_ENTRY));
            let names = entries.filter_map(|entry| entry.first_child());
            let whole = patterns.iter().flat_map(|pattern| children(pattern, SyntaxKind::NODE_PAT_BIND));
            simple.chain(names).chain(whole.flat_map(identifiers)).collect()
        }
        _ => Vec::new(),
    }
}

/// Whether an expression in the node mentions the name.
fn used(node: &SyntaxNode, name: &str) -> bool {
    let mention = |identifier: &SyntaxNode| {
        let Some(parent) = identifier.parent() else { return false };
        match parent.kind() {
            SyntaxKind::NODE_ATTRPATH | SyntaxKind::NODE_IDENT_PARAM | SyntaxKind::NODE_PAT_BIND => false,
            SyntaxKind::NODE_PAT_ENTRY => parent.first_child().as_ref() != Some(identifier),
            // Without a set to take it from, the name comes from around; in the `let` that it is bound by, from further out.
            SyntaxKind::NODE_INHERIT => {
                parent.parent().as_ref() != Some(node)
                    && children(&parent, SyntaxKind::NODE_INHERIT_FROM).next().is_none()
            }
            _ => true,
        }
    };
    let mut identifiers = node.descendants().filter(|node| node.kind() == SyntaxKind::NODE_IDENT);
    identifiers.any(|identifier| identifier.text() == name && mention(&identifier))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn unused(text: &str, expected: &[&str]) {
        assert!(rnix::Root::parse(text).errors().is_empty(), "{text}");
        let found: Vec<_> = unused_names(text).into_iter().map(|(_, name)| name).collect();
        assert_eq!(found, expected, "{text}");
    }

    #[test]
    fn names_that_nothing_mentions_are_found_wherever_they_are_bound() {
        unused("let a = 1; b = 2; in b", &["a"]);
        unused("let inherit (x) a b; in { inherit a; }", &["b"]);
        unused("{ a, b ? 1, ... }@all: b", &["a", "all"]);
        unused("a: _b: c: c", &["a"]);
        unused("let a.b = 1; in { a = 2; }.a", &["a"]);
        assert_eq!(unused_names("let\n  a = 1;\nin 2"), [(2, "a".to_owned())]);
    }

    #[test]
    fn names_that_are_mentioned_are_not() {
        unused("let a = b; b = 1; in a", &[]);
        unused("{ a, b ? a }: b", &[]);
        unused("{ a }: { inherit a; }", &[]);
        unused("a: \"${a}\"", &[]);
        unused("let a = 1; in { b = x.${a}; }", &[]);
        unused("all@{ ... }: all.b", &[]);
        unused("{ a, b }: b", &[]);
    }

    #[test]
    fn a_mistake_in_the_syntax_is_told_and_a_text_is_laid_out_anew() {
        let path = Path::new("x.nix");
        assert!(formatted(path, "{ a = 1 }").is_err());
        assert_eq!(formatted(path, "{a=1;}").as_deref(), Ok("{a = 1;}\n"));
    }
}
