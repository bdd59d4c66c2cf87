// Asks before something ends or is removed for good.

const dialog = document.getElementById("confirm");
const button = document.getElementById("confirm-go");
const problem = document.getElementById("confirm-problem");
let act = null;
let place = null;

/**
 * Ask; `doing()` runs when the person says yes, and keeps the question open if it throws.
 * `go` and `keep` are what the two buttons say, `about` is the conversation with which the question
 * goes. Returned is what withdraws it: called while it still stands, it returns true.
 */
export function confirmed(
  title,
  name,
  words,
  doing,
  { go = "Delete", keep = "Keep it", about = null } = {},
) {
  document.getElementById("confirm-title").textContent = title;
  document.getElementById("confirm-name").textContent = name;
  document.getElementById("confirm-words").textContent = words;
  document.getElementById("confirm-keep").textContent = keep;
  button.textContent = go;
  problem.textContent = "";
  act = doing;
  place = about;
  dialog.showModal();
  return () => {
    const stands = dialog.open && act === doing;
    if (stands) dialog.close();
    return stands;
  };
}

/** This conversation is gone: nothing is left to be asked about it. */
export function withdrawn(conversation) {
  if (dialog.open && place === conversation) dialog.close();
}

button.addEventListener("click", async () => {
  const doing = act;
  button.disabled = true;
  try {
    await doing();
    // it may have been withdrawn meanwhile, and another one be asked
    if (act === doing) dialog.close();
  } catch (error) {
    if (act === doing) problem.textContent = error.message;
  } finally {
    button.disabled = false;
  }
});
