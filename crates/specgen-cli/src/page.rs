//! Reports as pages: one file each, nothing to fetch, dark or light as the reader's system is.

use anyhow::{Context, Result};
use minijinja::Environment;
use serde::Serialize;

/// What all pages look like; a page says `{% include "page.css" %}`.
const STYLE: &str = include_str!("page.css");
/// The name's ending turns on escaping.
const NAME: &str = "page.html";

/// A page's template, with what it may use.
pub(crate) struct Page(Environment<'static>);

impl Page {
    /// # Errors
    /// A template that is none.
    pub(crate) fn new(template: &'static str) -> Result<Self> {
        let mut environment = Environment::new();
        environment.add_template("page.css", STYLE).context("the pages' style")?;
        environment.add_template(NAME, template).context("the page's template")?;
        environment.add_filter("fixed", |x: f64, digits: usize| format!("{x:.digits$}"));
        environment.add_filter("short", |text: String, fits: usize| short(&text, fits));
        Ok(Self(environment))
    }

    /// The same with a filter.
    pub(crate) fn with_number_filter(mut self, name: &'static str, filter: fn(f64) -> String) -> Self {
        self.0.add_filter(name, filter);
        self
    }

    /// The page about `context`.
    ///
    /// # Errors
    /// A template that asks for what is not there.
    pub(crate) fn render(&self, context: impl Serialize) -> Result<String> {
        let page = self.0.get_template(NAME).and_then(|template| template.render(context));
        page.context("the page")
    }
}

/// As much of `label` as fits into so many characters.
pub(crate) fn short(label: &str, fits: usize) -> String {
    match label.char_indices().nth(fits) {
        Some((end, _)) => format!("{}…", &label[..end]),
        None => label.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn names_are_escaped_and_the_style_is_not() {
        let page =
            Page::new("<style>{% include \"page.css\" %}</style>{{ name }} {{ x | fixed(2) }}").unwrap();
        let page = page.render(minijinja::context! { name => "<b>&\"", x => 1.0 / 3.0 }).unwrap();
        assert!(page.contains(STYLE.trim_end()), "{page}");
        assert!(page.ends_with("&lt;b&gt;&amp;&quot; 0.33"), "{page}");
    }

    #[test]
    fn labels_are_cut_between_characters() {
        assert_eq!(short("größer", 6), "größer");
        assert_eq!(short("größer", 3), "grö…");
    }
}
