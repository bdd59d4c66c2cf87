// Asks before something is removed for good.

const dialog = document.getElementById("confirm");
const button = document.getElementById("confirm-go");
const problem = document.getElementById("confirm-problem");
let act = null;

/** Ask; `doing()` runs when the person says yes, and keeps the question open if it throws. */
export function confirmed(title, name, words, doing) {
  document.getElementById("confirm-title").textContent = title;
  document.getElementById("confirm-name").textContent = name;
  document.getElementById("confirm-words").textContent = words;
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
