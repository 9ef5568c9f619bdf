"""A small text that ships with the code: speeches of eight plays of Shakespeare.

The text is in the public domain. It is enough to see that a run works, and far too
little to learn English from.
"""

import functools

import numpy as np

# A line "# play genre" for each play, then its speeches: "ROLE: text".
_PLAYS = """
# hamlet tragedy
HAMLET: A little more than kin, and less than kind.
HAMLET: Not so, my lord; I am too much i' the sun.
HAMLET: Where wilt thou lead me? speak; I'll go no further.
HAMLET: Never make known what you have seen to-night.
HAMLET: Why did you laugh then, when I said 'man delights not me'?
HAMLET: O Jephthah, judge of Israel, what a treasure hadst thou!
HAMLET: No, good mother, here's metal more attractive.
HORATIO: Most like: it harrows me with fear and wonder.
HORATIO: The same, my lord, and your poor servant ever.
HORATIO: My lord, I came to see your father's funeral.
HORATIO: A countenance more in sorrow than in anger.
HORATIO: While one with moderate haste might tell a hundred.
HORATIO: These are but wild and whirling words, my lord.
HORATIO: O day and night, but this is wondrous strange!
OPHELIA: So please you, something touching the Lord Hamlet.
OPHELIA: I do not know, my lord, what I should think.
OPHELIA: O, my lord, my lord, I have been so affrighted!
OPHELIA: Belike this show imports the argument of the play.
OPHELIA: You are naught, you are naught: I'll mark the play.
OPHELIA: Where is the beauteous majesty of Denmark?
ROSENCRANTZ: None, my lord, but that the world's grown honest.
ROSENCRANTZ: My lord, there was no such stuff in my thoughts.
ROSENCRANTZ: Ay, that they do, my lord; Hercules and his load too.
ROSENCRANTZ: Ay, my lord; they stay upon your patience.
ROSENCRANTZ: What have you done, my lord, with the dead body?
ROSENCRANTZ: Without, my lord; guarded, to know your pleasure.
BERNARDO: 'Tis now struck twelve; get thee to bed, Francisco.
BERNARDO: Welcome, Horatio: welcome, good Marcellus.
BERNARDO: In the same figure, like the king that's dead.
BERNARDO: Looks it not like the king? mark it, Horatio.
BERNARDO: It was about to speak, when the cock crew.
MARCELLUS: What, has this thing appear'd again to-night?
MARCELLUS: Peace, break thee off; look, where it comes again!
MARCELLUS: My lord, upon the platform where we watch'd.
MARCELLUS: Let's follow; 'tis not fit thus to obey him.
MARCELLUS: Something is rotten in the state of Denmark.
OSRIC: Your lordship is right welcome back to Denmark.
OSRIC: Your lordship speaks most infallibly of him.
OSRIC: You are not ignorant of what excellence Laertes is--
OSRIC: I mean, my lord, the opposition of your person in trial.
GUILDENSTERN: O, there has been much throwing about of brains.
GUILDENSTERN: Good my lord, vouchsafe me a word with you.
GUILDENSTERN: Is in his retirement marvellous distempered.
# macbeth tragedy
MACDUFF: What three things does drink especially provoke?
MACDUFF: I believe drink gave thee the lie last night.
MACDUFF: The tyrant has not batter'd at their peace?
MACDUFF: But not a niggard of your speech: how goes't?
DOCTOR: You may to me: and 'tis most meet you should.
DOCTOR: What is it she does now? Look, how she rubs her hands.
DOCTOR: Go to, go to; you have known what you should not.
DOCTOR: What a sigh is there! The heart is sorely charged.
BANQUO: To the selfsame tune and words. Who's here?
BANQUO: Worthy Macbeth, we stay upon your leisure.
BANQUO: Ay, my good lord: our time does call upon 's.
LADY MACBETH: He has almost supp'd: why have you left the chamber?
LADY MACBETH: Almost at odds with morning, which is which.
LADY MACBETH: You lack the season of all natures, sleep.
ROSS: Is't known who did this more than bloody deed?
ROSS: Gentlemen, rise: his highness is not well.
ROSS: No; they were well at peace when I did leave 'em.
LADY MACDUFF: What had he done, to make him fly the land?
LADY MACDUFF: Yes, he is dead; how wilt thou do for a father?
LADY MACDUFF: Every one that does so is a traitor, and must be hanged.
MALCOLM: Well; more anon.--Comes the king forth, I pray you?
MALCOLM: I would the friends we miss were safe arrived.
FIRST WITCH: All hail, Macbeth! hail to thee, thane of Glamis!
# othello tragedy
IAGO: And when she speaks, is it not an alarum to love?
IAGO: Here at the door; I pray you, call them in.
IAGO: I protest, in the sincerity of love and honest kindness.
IAGO: I did not think he had been acquainted with her.
IAGO: Why, then, I think Cassio's an honest man.
IAGO: I see this hath a little dash'd your spirits.
IAGO: Long live she so! and long live you to think so!
OTHELLO: How comes it, Michael, you are thus forgot?
OTHELLO: This fortification, gentlemen, shall we see't?
OTHELLO: Not now, sweet Desdemona; some other time.
OTHELLO: Farewell, my Desdemona: I'll come to thee straight.
OTHELLO: He did, from first to last: why dost thou ask?
OTHELLO: I gave her such a one; 'twas my first gift.
OTHELLO: Give me your hand: this hand is moist, my lady.
DESDEMONA: Come on assay. There's one gone to the harbour?
DESDEMONA: Well praised! How if she be black and witty?
DESDEMONA: Do you know, sirrah, where Lieutenant Cassio lies?
DESDEMONA: Can you inquire him out, and be edified by report?
DESDEMONA: Where should I lose that handkerchief, Emilia?
DESDEMONA: It yet hath felt no age nor known no sorrow.
DESDEMONA: I cannot speak of this. Come now, your promise.
CASSIO: Indeed, she's a most fresh and delicate creature.
CASSIO: An inviting eye; and yet methinks right modest.
CASSIO: 'Fore God, they have given me a rouse already.
CASSIO: Is your Englishman so expert in his drinking?
CASSIO: Why, this is a more exquisite song than the other.
CASSIO: Why, very well then; you must not think then that I am drunk.
CASSIO: Alas, poor rogue! I think, i' faith, she loves me.
RODERIGO: Thou told'st me thou didst hold him in thy hate.
RODERIGO: By heaven, I rather would have been his hangman.
RODERIGO: Here is her father's house; I'll call aloud.
RODERIGO: What, ho, Brabantio! Signior Brabantio, ho!
RODERIGO: Most reverend signior, do you know my voice?
RODERIGO: Yes, that I did; but that was but courtesy.
RODERIGO: I do not find that thou dealest justly with me.
EMILIA: Good madam, what's the matter with my lord?
EMILIA: How goes it now? he looks gentler than he did.
EMILIA: I have laid those sheets you bade me on the bed.
EMILIA: 'Las, what's the matter? what's the matter, husband?
EMILIA: My lord, my lord! what, ho! my lord, my lord!
EMILIA: O, good my lord, I would speak a word with you!
EMILIA: O, my good lord, yonder's foul murders done!
LODOVICO: The duke and senators of Venice greet you.
LODOVICO: Are his wits safe? is he not light of brain?
LODOVICO: I do beseech you, sir, trouble yourself no further.
LODOVICO: Madam, good night; I humbly thank your ladyship.
LODOVICO: Where is this rash and most unfortunate man?
LODOVICO: Where is that viper? bring the villain forth.
MONTANO: What from the cape can you discern at sea?
MONTANO: But, good lieutenant, is your general wived?
MONTANO: I am for it, lieutenant; and I'll do you justice.
MONTANO: To the platform, masters; come, let's set the watch.
MONTANO: 'Zounds, I bleed still; I am hurt to the death.
# midsummer-nights-dream comedy
DEMETRIUS: I charge thee, hence, and do not haunt me thus.
DEMETRIUS: I had rather give his carcass to my hounds.
DEMETRIUS: An if I could, what should I get therefore?
DEMETRIUS: No, sir, she shall not, though you take her part.
DEMETRIUS: Follow! nay, I'll go with thee, cheek by jole.
DEMETRIUS: These things seem small and undistinguishable,
DEMETRIUS: No wonder, my lord: one lion may, when many asses do.
LYSANDER: Or else it stood upon the choice of friends,--
LYSANDER: Keep promise, love. Look, here comes Helena.
LYSANDER: Demetrius loves her, and he loves not you.
LYSANDER: Why should he stay, whom love doth press to go?
LYSANDER: If thou say so, withdraw, and prove it too.
LYSANDER: Be not afraid; she shall not harm thee, Helena.
LYSANDER: Where art thou, proud Demetrius? speak thou now.
THESEUS: Thanks, good Egeus: what's the news with thee?
THESEUS: Rather your eyes must with his judgment look.
THESEUS: Why, gentle sweet, you shall see no such thing.
THESEUS: Would you desire lime and hair to speak better?
THESEUS: The wall, methinks, being sensible, should curse again.
THESEUS: Now is the mural down between the two neighbours.
THESEUS: A very gentle beast, of a good conscience.
HELENA: O that your frowns would teach my smiles such skill!
HELENA: O that my prayers could such affection move!
HELENA: None, but your beauty: would that fault were mine!
HELENA: Stay, though thou kill me, sweet Demetrius.
HELENA: O, wilt thou darkling leave me? do not so.
HELENA: Nor none, in my mind, now you give her o'er.
HELENA: A foolish heart, that I leave here behind.
QUINCE: Answer as I call you. Nick Bottom, the weaver.
QUINCE: You, Nick Bottom, are set down for Pyramus.
QUINCE: A lover, that kills himself most gallant for love.
QUINCE: No, no; you must play Pyramus: and, Flute, you Thisby.
QUINCE: You may do it extempore, for it is nothing but roaring.
QUINCE: Have you sent to Bottom's house? is he come home yet?
QUINCE: Bottom! O most courageous day! O most happy hour!
HERMIA: I would my father look'd but with my eyes.
HERMIA: O cross! too high to be enthrall'd to low.
HERMIA: With half that wish the wisher's eyes be press'd!
HERMIA: I pray thee, tell me then that he is well.
HERMIA: What love could press Lysander from my side?
HERMIA: Why, get you gone: who is't that hinders you?
BOTTOM: Ready. Name what part I am for, and proceed.
BOTTOM: No, make it two more; let it be written in eight and eight.
BOTTOM: Thisby, the flowers of odious savours sweet,--
BOTTOM: If I were fair, Thisby, I were only thine.
BOTTOM: Scratch my head Peaseblossom. Where's Mounsieur Cobweb?
BOTTOM: Where are these lads? where are these hearts?
SNOUT: Will not the ladies be afeard of the lion?
SNOUT: Therefore another prologue must tell he is not a lion.
SNOUT: Doth the moon shine that night we play our play?
SNOUT: You can never bring in a wall. What say you, Bottom?
SNOUT: O Bottom, thou art changed! what do I see on thee?
# twelfth-night comedy
OLIVIA: Well, sir, for want of other idleness, I'll bide your proof.
OLIVIA: What think you of this fool, Malvolio? doth he not mend?
OLIVIA: By mine honour, half drunk. What is he at the gate, cousin?
OLIVIA: Cousin, cousin, how have you come so early by this lethargy?
OLIVIA: Come to what is important in't: I forgive you the praise.
OLIVIA: Yet you began rudely. What are you? what would you?
OLIVIA: In his bosom! In what chapter of his bosom?
MALVOLIO: Of very ill manner; he'll speak with you, will you or no.
MALVOLIO: Were not you even now with the Countess Olivia?
MALVOLIO: M,--Malvolio; M,--why, that begins my name.
MALVOLIO: To bed! ay, sweet-heart, and I'll come to thee.
MALVOLIO: At your request! yes; nightingales answer daws.
MALVOLIO: 'Be not afraid of greatness:' 'twas well writ.
MALVOLIO: 'And some have greatness thrust upon them.'
SIR ANDREW: Good Mistress Accost, I desire better acquaintance.
SIR ANDREW: Marry, but you shall have; and here's my hand.
SIR ANDREW: Wherefore, sweet-heart? what's your metaphor?
SIR ANDREW: But it becomes me well enough, does't not?
SIR ANDREW: There's a testril of me too: if one knight give a--
SIR ANDREW: An you love me, let's do't: I am dog at a catch.
SIR ANDREW: Most certain. Let our catch be, 'Thou knave.'
CLOWN: Not so, neither; but I am resolved on two points.
CLOWN: Do you not hear, fellows? Take away the lady.
CLOWN: Would you have a love-song, or a song of good life?
CLOWN: By'r lady, sir, and some dogs will catch well.
CLOWN: Beshrew me, the knight's in admirable fooling.
CLOWN: 'His eyes do show his days are almost done.'
CLOWN: No pains, sir: I take pleasure in singing, sir.
VIOLA: O my poor brother! and so perchance may he be.
VIOLA: Say I do speak with her, my lord, what then?
VIOLA: The honourable lady of the house, which is she?
VIOLA: Alas, I took great pains to study it, and 'tis poetical.
VIOLA: To answer by the method, in the first of his heart.
VIOLA: I warrant thou art a merry fellow and carest for nothing.
VIOLA: Cesario is your servant's name, fair princess.
MARIA: They that add, moreover, he's drunk nightly in your company.
MARIA: In the wars; and that may you be bold to say in your foolery.
MARIA: I know not, madam: 'tis a fair young man, and well attended.
MARIA: Will you hoist sail, sir? here lies your way.
MARIA: Marry, sir, sometimes he is a kind of puritan.
MARIA: My purpose is, indeed, a horse of that colour.
MARIA: Why appear you with this ridiculous boldness before my lady?
FABIAN: Though our silence be drawn from us with cars, yet peace.
FABIAN: Nay, patience, or we break the sinews of our plot.
FABIAN: You must needs yield your reason, Sir Andrew.
FABIAN: This was a great argument of love in her toward you.
FABIAN: A good note; that keeps you from the blow of the law.
FABIAN: Very brief, and to exceeding good sense--less.
FABIAN: Still you keep o' the windy side of the law: good.
DUKE ORSINO: She is not worth thee, then. What years, i' faith?
DUKE ORSINO: I know thee well; how dost thou, my good fellow?
DUKE ORSINO: Just the contrary; the better for thy friends.
DUKE ORSINO: Thou shalt not be the worse for me: there's gold.
# as-you-like-it comedy
ROSALIND: Ay, my liege, so please you give us leave.
ROSALIND: Young man, have you challenged Charles the wrestler?
ROSALIND: The little strength that I have, I would it were with you.
ROSALIND: Fare you well: pray heaven I be deceived in you!
ROSALIND: I could shake them off my coat: these burs are in my heart.
ROSALIND: I would try, if I could cry 'hem' and have him.
ROSALIND: O, they take the part of a better wrestler than myself!
ORLANDO: Nothing: I am not taught to make any thing.
ORLANDO: Come, come, elder brother, you are too young in this.
ORLANDO: I will no further offend you than becomes me for my good.
ORLANDO: Ready, sir; but his will hath in it a more modest working.
ORLANDO: Yes, I beseech your grace: I am not yet well breathed.
ORLANDO: Orlando, my liege; the youngest son of Sir Rowland de Boys.
ORLANDO: Why, whither, Adam, wouldst thou have me go?
CELIA: I pray thee, Rosalind, sweet my coz, be merry.
CELIA: Which he will put on us, as pigeons feed their young.
CELIA: Well said: that was laid on with a trowel.
CELIA: Well, the beginning, that is dead and buried.
CELIA: I could match this beginning with an old tale.
CELIA: Yonder, sure, they are coming: let us now stay and see it.
CELIA: Alas, he is too young! yet he looks successfully.
TOUCHSTONE: Mistress, you must come away to your father.
TOUCHSTONE: No, by mine honour, but I was bid to come for you.
TOUCHSTONE: One that old Frederick, your father, loves.
TOUCHSTONE: I care not for my spirits, if my legs were not weary.
TOUCHSTONE: And mine; but it grows something stale with me.
TOUCHSTONE: We shall find a time, Audrey; patience, gentle Audrey.
TOUCHSTONE: A fair name. Wast born i' the forest here?
JAQUES: An you will not be answered with reason, I must die.
JAQUES: God be wi' you: let's meet as little as we can.
JAQUES: The worst fault you have is to be in love.
JAQUES: I am so; I do love it better than laughing.
JAQUES: Nay, then, God be wi' you, an you talk in blank verse.
JAQUES: How seventh cause? Good my lord, like this fellow.
JAQUES: And how oft did you say his beard was not well cut?
DUKE SENIOR: And did you leave him in this contemplation?
DUKE SENIOR: Fie on thee! I can tell what thou wouldst do.
DUKE SENIOR: Sit down and feed, and welcome to our table.
DUKE SENIOR: That would I, had I kingdoms to give with her.
DUKE SENIOR: By my faith, he is very swift and sententious.
DUKE SENIOR: If there be truth in sight, you are my daughter.
OLIVER: Marry, sir, be better employed, and be naught awhile.
OLIVER: Was not Charles, the duke's wrestler, here to speak with me?
OLIVER: What, you wrestle to-morrow before the new duke?
OLIVER: Many will swoon when they do look on blood.
OLIVER: Well then, take a good heart and counterfeit to be a man.
LE BEAU: Fair princess, you have lost much good sport.
LE BEAU: What colour, madam! how shall I answer you?
LE BEAU: There comes an old man and his three sons,--
LE BEAU: Three proper young men, of excellent growth and presence.
LE BEAU: Monsieur the challenger, the princesses call for you.
# henry-v history
KING HENRY V: May I with right and conscience make this claim?
KING HENRY V: How now, Fluellen! camest thou from the bridge?
KING HENRY V: Well then I know thee: what shall I know of thee?
KING HENRY V: God-a-mercy, old heart! thou speak'st cheerfully.
KING HENRY V: I myself heard the king say he would not be ransomed.
KING HENRY V: If I live to see it, I will never trust his word after.
KING HENRY V: If ever I live to see it, I will challenge it.
ORLEANS: You have an excellent armour; but let my horse have his due.
ORLEANS: You are as well provided of both as any prince in the world.
ORLEANS: I have heard a sonnet begin so to one's mistress.
ORLEANS: By the white hand of my lady, he's a gallant prince.
ORLEANS: He is simply the most active gentleman of France.
ORLEANS: He needs not; it is no hidden virtue in him.
ORLEANS: And I will take up that with 'Give the devil his due.'
CONSTABLE: Tut! I have the best armour of the world. Would it were day!
CONSTABLE: Indeed, my lord, it is a most absolute and excellent horse.
CONSTABLE: You must first go yourself to hazard, ere you have them.
CONSTABLE: Swear by her foot, that she may tread out the oath.
CONSTABLE: Doing is activity; and he will still be doing.
CONSTABLE: Nor will do none to-morrow: he will keep that good name still.
CONSTABLE: I will cap that proverb with 'There is flattery in friendship.'
PISTOL: Pish for thee, Iceland dog! thou prick-ear'd cur of Iceland!
PISTOL: Let floods o'erswell, and fiends for food howl on!
PISTOL: Sword is an oath, and oaths must have their course.
PISTOL: Let housewifery appear: keep close, I thee command.
PISTOL: Die and be damn'd! and figo for thy friendship!
PISTOL: Le Roy! a Cornish name: art thou of Cornish crew?
PISTOL: Bid him prepare; for I will cut his throat.
NYM: Will you shog off? I would have you solus.
NYM: You'll pay me the eight shillings I won of you at betting?
NYM: That now I will have: that's the humour of it.
NYM: I shall have my eight shillings I won of you at betting?
NYM: I cannot kiss, that is the humour of it; but, adieu.
NYM: These be good humours! your honour wins bad humours.
KATHARINE: Alice, tu as ete en Angleterre, et tu parles bien le langage.
KATHARINE: De sin. Le col, de nick; de menton, de sin.
KATHARINE: Your majesty shall mock at me; I cannot speak your England.
KATHARINE: Pardonnez-moi, I cannot tell vat is 'like me.'
KATHARINE: Que dit-il? que je suis semblable a les anges?
KATHARINE: Is it possible dat I sould love de enemy of France?
FLUELLEN: Up to the breach, you dogs! avaunt, you cullions!
FLUELLEN: God-den to your worship, good Captain James.
FLUELLEN: Aunchient Pistol, I do partly understand your meaning.
FLUELLEN: That is he: I'll tell you there is good men porn at Monmouth.
FLUELLEN: Know the glove! I know the glove is glove.
GOWER: Here a' comes; and the Scots captain, Captain Jamy, with him.
GOWER: Gentlemen both, you will mistake each other.
GOWER: How now, Captain Fluellen! come you from the bridge?
GOWER: Why, the enemy is loud; you hear him all night.
GOWER: Why, here he comes, swelling like a turkey-cock.
# richard-iii history
GLOUCESTER: Her husband, knave: wouldst thou betray me?
GLOUCESTER: Stay, you that bear the corse, and set it down.
GLOUCESTER: Sweet saint, for charity, be not so curst.
GLOUCESTER: But I know none, and therefore am no beast.
GLOUCESTER: Nay, he is dead; and slain by Edward's hand.
GLOUCESTER: The fitter for the King of heaven, that hath him.
GLOUCESTER: Yes, one place else, if you will hear me name it.
BUCKINGHAM: Madam, good hope; his grace speaks cheerfully.
BUCKINGHAM: Northumberland, then present, wept to see it.
BUCKINGHAM: And, in good time, here comes the noble duke.
BUCKINGHAM: Welcome, sweet prince, to London, to your chamber.
BUCKINGHAM: And, in good time, here comes the sweating lord.
BUCKINGHAM: Now, in good time, here comes the Duke of York.
BUCKINGHAM: What think'st thou, then, of Stanley? what will he?
LADY ANNE: He is in heaven, where thou shalt never come.
LADY ANNE: I'll rest betide the chamber where thou liest!
LADY ANNE: Thou art the cause, and most accursed effect.
LADY ANNE: Black night o'ershade thy day, and death thy life!
LADY ANNE: His better doth not breathe upon the earth.
LADY ANNE: Would it were mortal poison, for thy sake!
LADY ANNE: Would they were basilisks, to strike thee dead!
RIVERS: Is it concluded that he shall be protector?
RIVERS: Saw you the king to-day, my Lord of Derby?
RIVERS: To whom in all this presence speaks your grace?
RIVERS: Tyrants themselves wept when it was reported.
RIVERS: Were you well served, you would be taught your duty.
RIVERS: And so doth mine: I muse why she's at liberty.
RIVERS: Who knows not he is dead! who knows he is?
HASTINGS: My hair doth stand on end to hear her curses.
HASTINGS: Cannot thy master sleep these tedious nights?
HASTINGS: How! wear the garland! dost thou mean the crown?
HASTINGS: Gramercy, fellow: there, drink that for me.
HASTINGS: 'Tis like enough, for I stay dinner there.
HASTINGS: If they have done this thing, my gracious lord--
CATESBY: My good lords both, with all the heed I may.
CATESBY: God keep your lordship in that gracious mind!
CATESBY: O, make them joyful, grant their lawful suit!
CATESBY: Call them again, my lord, and accept their suit.
CATESBY: If is, my liege; and all things are in readiness.
CATESBY: Withdraw, my lord; I'll help you to a horse.
YORK: If 'twere not she, I cannot tell who told me.
YORK: Well, my dread lord; so must I call you now.
YORK: A greater gift! O, that's the sword to it.
YORK: I would, that I might thank you as you call me.
YORK: What, will you go unto the Tower, my lord?
LORD MAYOR: God bless your grace with health and happy days!
LORD MAYOR: Marry, God forbid his grace should say us nay!
LORD MAYOR: See, where he stands between two clergymen!
LORD MAYOR: Do, good my lord, your citizens entreat you.
LORD MAYOR: God bless your grace! we see it, and will say it.
"""


@functools.lru_cache(maxsize=1)
def speeches() -> tuple[tuple[str, str], ...]:
  """(text, tags separated by '|': play, genre, role) of each speech."""
  found, play, genre = [], '', ''
  for line in _PLAYS.strip().splitlines():
    if line.startswith('# '):
      _, play, genre = line.split()
    else:
      role, text = line.split(': ', 1)
      found.append((text, f'{play}|{genre}|{role.lower().replace(" ", "-")}'))
  return tuple(found)


def records_by_client(num_clients: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
  """The speeches, divided over simulated clients.

  A client has speeches that follow each other, mostly of one role.

  Args:
    num_clients: From 2 to the number of speeches, 375.

  Returns:
    'text', 'tags' and 'title' (empty), object arrays of str; and int64 [speeches]
    in [0, num_clients), the client of each.

  Raises:
    ValueError: If num_clients is out of range.
  """
  count = len(speeches())
  if not 2 <= num_clients <= count:
    raise ValueError(
        f'num_clients must be from 2 to the {count} speeches, found {num_clients!r}')
  texts, tags = zip(*speeches())
  fields = {'text': texts, 'tags': tags, 'title': ('',) * count}
  return ({name: np.array(values, object) for name, values in fields.items()},
          np.arange(count) * num_clients // count)
