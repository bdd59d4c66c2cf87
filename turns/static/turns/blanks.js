// Which texts say nothing to a reader: the service judges alike (recovery/blanks.py).

// white space, control and format characters, fillers and selectors, and braille without a dot
const SEEN = /[^\s\p{Cc}\p{Cf}\p{Default_Ignorable_Code_Point}\u2800]/u;

/** Whether a reader would see a character of it. */
export function showsSomething(text) {
  return SEEN.test(text);
}
