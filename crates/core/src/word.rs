//! Words: enums whose variants are fixed strings on the wire.
//!
//! One macro gives them `as_str`, parsing (with the accepted other spellings), serde and the wire
//! form, so that a word is spelled in exactly one place.

use alloc::string::String;

/// What is said of a word that is none of those that are expected.
pub(crate) fn unknown(text: &str, expected: &[&str]) -> String {
    let text = crate::wire::shorten(text);
    alloc::format!("unknown word `{text}`, expected one of `{}`", expected.join("`, `"))
}

/// Defines an enum of wire words. `"text" | "other spelling"` accepts both and prints the first.
macro_rules! words {
    ($(#[$meta:meta])* $name:ident { $( $(#[$vmeta:meta])* $variant:ident = $text:literal $(| $alias:literal)* ),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $( $(#[$vmeta])* $variant ),+ }

        impl $name {
            /// Every variant, in the order of the definition.
            pub const ALL: &'static [$name] = &[$( $name::$variant ),+];

            /// Every accepted spelling.
            pub const SPELLINGS: &'static [&'static str] = &[$( $text $(, $alias)* ),+];

            /// The word as it is printed and stored.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $( $name::$variant => $text ),+ }
            }

            /// Reads a word in any of its accepted spellings.
            #[must_use]
            pub fn parse(text: &str) -> Option<$name> {
                match text { $( $text $(| $alias)* => Some($name::$variant), )+ _ => None }
            }
        }

        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.serialize_str(self.as_str())
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                let unknown = |text: &str| $crate::word::unknown(text, &[$( $text ),+]);
                $crate::wire::parsed(d, |text| $name::parse(text).ok_or_else(|| unknown(text)))
            }
        }

        impl $crate::wire::Wire for $name {
            fn kind() -> &'static str { "word" }
            fn put(&self, out: &mut $crate::wire::Writer<'_>) { out.plain(self.as_str()); }
            fn get(r: &mut $crate::wire::Reader<'_>) -> Result<Self, $crate::wire::Error> {
                let text = r.text()?;
                $name::parse(&text).ok_or_else(|| $crate::wire::Error::Word {
                    word: $crate::wire::shorten(&text), expected: &[$( $text ),+],
                })
            }
        }
    };
}
pub(crate) use words;
