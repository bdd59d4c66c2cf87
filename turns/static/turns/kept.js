// What the browser keeps for one person: drafts, and messages nobody has taken yet.

export class Kept {
  constructor(user) {
    this.prefix = `holdfast.${user}.`;
  }

  /** Drafts survive the browser; what is being sent belongs to its tab. */
  draft(place) {
    return read(localStorage, `${this.prefix}draft.${place}`) ?? "";
  }

  keepDraft(place, text) {
    write(localStorage, `${this.prefix}draft.${place}`, text || null);
  }

  unsent(place) {
    return read(sessionStorage, `${this.prefix}unsent.${place}`) ?? [];
  }

  keepUnsent(place, items) {
    write(sessionStorage, `${this.prefix}unsent.${place}`, items.length ? items : null);
  }

  forgetPlace(place) {
    this.keepDraft(place, "");
    this.keepUnsent(place, []);
  }

  /** Nothing of this person stays behind for the next one. */
  forget() {
    for (const storage of [localStorage, sessionStorage]) {
      for (const key of Object.keys(storage)) {
        if (key.startsWith(this.prefix)) storage.removeItem(key);
      }
    }
  }
}

function read(storage, key) {
  try {
    return JSON.parse(storage.getItem(key));
  } catch {
    return null;
  }
}

function write(storage, key, value) {
  try {
    if (value === null) storage.removeItem(key);
    else storage.setItem(key, JSON.stringify(value));
  } catch {
    // full or forbidden: then it lives as long as the page
  }
}
