// Asks before something ends or is removed for good.

const dialog = document.getElementById("confirm");
const button = document.getElementById("confirm-go");
const problem = document.getElementById("confirm-problem");
let act = null;

/**
 * Ask; `doing()` runs when the person says yes, and keeps the question open if it throws.
 * `go` and `keep` are what the two buttons say.
 */
export function confirmed(title, name, words, doing, { go = "Delete", keep = "Keep it" } = {}) {
  document.getElementById("confirm-title").textContent = title;
  document.getElementById("confirm-name").textContent = name;
  document.getElementById("confirm-words").textContent = words;
  document.getElementById("confirm-keep").textContent = keep;
  button.textContent = go;
  problem.textContent = "";
  act = doing;
  dialog.showModal();
}

button.addEventListener("click", async () => {
  button.disabled = true;
  try {
    await act();
    dialog.close();
  } catch (error) {
    problem.textContent = error.message;
  } finally {
    button.disabled = false;
  }
});
